"""Translation in the dialect of LibreTranslate, used by the unmodified client `libretranslatepy`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from libretranslatepy import LibreTranslateAPI
from starlette.testclient import TestClient

import triform
from triform.serving import ServerOptions
from triform.serving.languages import find_languages

TEXTS = ["amber birch cedar", "dune ember"]
EN_FR = {"source": "en", "target": "fr"}


@pytest.fixture(scope="module")
def run(runs_folder: Path) -> triform.Run:
    return triform.load(runs_folder / "french", device="cpu")


@pytest.fixture(scope="module")
def client(connect: Any, runs_folder: Path) -> TestClient:
    runs = {"en-fr": runs_folder / "french", "reviews": runs_folder / "reviews"}
    return connect(ServerOptions(runs=runs, device="cpu", max_queue=4))


@pytest.fixture(scope="module")
def address(start_server: Any, runs_folder: Path) -> Iterator[str]:
    options = ServerOptions(runs={"en-fr": runs_folder / "french"}, device="cpu", token="secret")
    with start_server(options) as address:
        yield address


def test_the_client_of_libretranslate_translates(address: str, run: triform.Run) -> None:
    client = LibreTranslateAPI(address, api_key="secret")
    assert client.translate(TEXTS[0], "en", "fr") == run.predict(TEXTS[0])[0].output
    assert client.languages() == [{"code": "en", "name": "English", "targets": ["fr"]}]
    for key in (None, "wrong"):
        with pytest.raises(Exception, match="401"):
            LibreTranslateAPI(address, api_key=key).translate(TEXTS[0], "en", "fr")
        with pytest.raises(Exception, match="401"):
            LibreTranslateAPI(address, api_key=key).languages()
        with pytest.raises(Exception, match="401"):
            LibreTranslateAPI(address, api_key=key).detect(TEXTS[0])


def test_the_client_of_libretranslate_gets_the_only_source_language(
    address: str, connect: Any, runs_folder: Path
) -> None:
    assert LibreTranslateAPI(address, api_key="secret").detect(TEXTS[0]) == [{"confidence": 0.0, "language": "en"}]
    french = runs_folder / "french"
    client = connect(ServerOptions(runs={"en-fr": french, "en-de": french}, device="cpu"))
    answer = client.post("/detect", json={"q": TEXTS[0]})
    assert (answer.status_code, answer.json()) == (200, [{"confidence": 0.0, "language": "en"}])
    assert client.post("/detect", json={"q": " "}).json() == {"error": "q: a text is empty"}
    several = connect(ServerOptions(runs={"en-fr": french, "de-fr": french}, device="cpu"))
    answer = several.post("/detect", data={"q": TEXTS[0]})
    error = "this server does not detect languages; send one of de, en as source to /translate"
    assert (answer.status_code, answer.json()) == (400, {"error": error})
    unknown = connect(ServerOptions(folder=runs_folder, device="cpu"))
    assert unknown.post("/detect", json={"q": TEXTS[0]}).json() == [{"confidence": 0.0, "language": "und"}]
    without = connect(ServerOptions(runs={"reviews": runs_folder / "reviews"}, device="cpu"))
    assert without.post("/detect", json={"q": TEXTS[0]}).status_code == 404


def test_texts_are_translated_as_by_the_run(client: TestClient, run: triform.Run) -> None:
    expected = [prediction.output for prediction in run.predict(TEXTS)]
    assert client.post("/translate", json={"q": TEXTS[0], **EN_FR}).json() == {"translatedText": expected[0]}
    body = {"q": TEXTS, **EN_FR, "format": "text"}
    assert client.post("/translate", json=body).json() == {"translatedText": expected}
    assert client.post("/translate", data={"q": TEXTS, **EN_FR}).json() == {"translatedText": expected}


def test_the_source_may_be_left_to_the_server(client: TestClient) -> None:
    detected = {"confidence": 0.0, "language": "en"}
    body = {"source": "auto", "target": "fr"}
    assert client.post("/translate", json={"q": TEXTS[0], **body}).json()["detectedLanguage"] == detected
    assert client.post("/translate", json={"q": TEXTS, **body}).json()["detectedLanguage"] == [detected] * 2


def test_the_target_may_be_left_to_the_model(client: TestClient) -> None:
    body = {"q": TEXTS[0], "source": "en"}
    expected = client.post("/translate", json={**body, "target": "fr"}).json()
    assert client.post("/translate", json={**body, "target": "auto"}).json() == expected


def test_alternatives_are_the_next_hypotheses_of_beam_search(client: TestClient, run: triform.Run) -> None:
    hypotheses = [alternative.text for alternative in run.predict(TEXTS[0], top=4)[0].alternatives]
    answer = client.post("/translate", data={"q": TEXTS[0], **EN_FR, "alternatives": "3"}).json()
    assert [answer["translatedText"], *answer["alternatives"]] == hypotheses
    several = client.post("/translate", json={"q": TEXTS, **EN_FR, "alternatives": 5}).json()
    assert [len(alternatives) for alternatives in several["alternatives"]] == [5, 5]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"q": ""}, 400, "q: a text is empty"),
        ({"q": []}, 400, "q: there are no texts"),
        ({"q": ["a", " "]}, 400, "q: a text is empty"),
        ({"q": ["a"] * 5}, 400, "q: a request may have at most 4 texts, found 5"),
        ({"q": 3}, 400, "q: Expected `str | array`, got `int`"),
        ({"q": "amber " * 1000}, 400, "tokens, and this model reads at most"),
        ({"source": "de"}, 400, "de to fr is not available; this server translates en to fr"),
        ({"target": "en"}, 400, "en to en is not available"),
        ({"format": "html"}, 400, "format: 'html' is not supported"),
        ({"alternatives": -1}, 400, "alternatives: Expected `int` >= 0"),
        ({"alternatives": 99}, 400, "alternatives: Expected `int` <= 16"),
        ({"glossary": "x"}, 400, "unknown parameter: glossary"),
        ({"model": "nothing"}, 404, "there is no model 'nothing'"),
        ({"model": "reviews"}, 400, "model 'reviews' is for classify"),
    ],
)
def test_bad_input_is_refused_with_the_reason(
    client: TestClient, body: dict[str, Any], status: int, message: str
) -> None:
    answer = client.post("/translate", json={"q": "amber", **EN_FR, **body})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert message in answer.json()["error"]


def test_a_missing_parameter_is_named(client: TestClient) -> None:
    assert client.post("/translate", json={"q": "amber", "source": "en"}).json() == {
        "error": "missing parameter: target"
    }


def test_the_languages_choose_the_model(connect: Any, runs_folder: Path) -> None:
    french = runs_folder / "french"
    client = connect(ServerOptions(runs={"en-fr": french, "de-fr": french, "old/en-fr": french}, device="cpu"))
    german = client.post("/translate", json={"q": "amber", "source": "de", "target": "fr"})
    assert german.status_code == 200
    several = client.post("/translate", json={"q": "amber", **EN_FR})
    assert several.json() == {"error": "several models fit; choose one with model: en-fr, old/en-fr"}
    assert client.post("/translate?model=en-fr", json={"q": "amber", **EN_FR}).status_code == 200
    languages = {language["code"]: language["targets"] for language in client.get("/languages").json()}
    assert languages == {"de": ["fr"], "en": ["fr"]}


def test_a_model_whose_languages_are_not_known_takes_any(connect: Any, runs_folder: Path) -> None:
    client = connect(ServerOptions(folder=runs_folder, device="cpu"))
    assert client.post("/translate", json={"q": "amber", **EN_FR}).status_code == 200
    assert client.get("/languages").json() == [{"code": "und", "name": "Undetermined", "targets": ["und"]}]


def test_a_server_without_a_translator_says_so(connect: Any, runs_folder: Path) -> None:
    client = connect(ServerOptions(runs={"reviews": runs_folder / "reviews"}))
    assert client.get("/languages").json() == []
    answer = client.post("/translate", json={"q": "amber", **EN_FR})
    assert answer.status_code == 404
    assert "there is no model for translate" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "data", "languages"),
    [
        ("en-fr", {}, ("en", "fr")),
        ("runs/de-en", {"source": "a.en", "target": "a.fr"}, ("de", "en")),
        ("my-run", {}, ("und", "und")),
        ("x", {"source": "data/train.en", "target": "data/train.fr"}, ("en", "fr")),
        ("x", {"source": "europarl.fr-en.fr.gz", "target": "europarl.fr-en.en.gz"}, ("fr", "en")),
        ("x", {"train": "train.en,train.de"}, ("en", "de")),
        ("x", {"train": "builtin:numbers"}, ("en", "fr")),
        ("x", {"train": "pairs.tsv", "source_column": "English", "target_column": "fr"}, ("en", "fr")),
        ("x", {"train": "pairs.tsv", "source_column": "1", "target_column": "2"}, ("und", "und")),
        ("x", {"source": "a.en", "target": "b.en"}, ("und", "und")),
    ],
)
def test_languages_are_found_in_names(name: str, data: dict[str, str], languages: tuple[str, str]) -> None:
    assert find_languages(name, data) == languages
