"""The three tasks, classify, generate and translate, and the pretraining of their models."""

from triform.config import Config, ObjectiveKind, TaskName
from triform.tasks.batch import Batch, Dataset
from triform.tasks.classify import Classify
from triform.tasks.generate import Generate
from triform.tasks.prediction import Prediction
from triform.tasks.pretraining import Denoise, MaskedLanguageModel
from triform.tasks.task import PreparedTask, Task
from triform.tasks.translate import Translate

TASKS: dict[TaskName, type[Task]] = {"classify": Classify, "generate": Generate, "translate": Translate}
PRETRAINING: dict[ObjectiveKind, type[Task]] = {"masked": MaskedLanguageModel, "denoise": Denoise}


def choose_task(config: Config) -> type[Task]:
    """Return the class of the task that these settings train: that of `train.objective`, or else of the name."""
    return PRETRAINING.get(config.train.objective, TASKS[config.task])


__all__ = [
    "TASKS",
    "Batch",
    "Classify",
    "Dataset",
    "Generate",
    "Prediction",
    "PreparedTask",
    "Task",
    "Translate",
    "choose_task",
]
