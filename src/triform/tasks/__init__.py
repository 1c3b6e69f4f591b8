"""The three tasks, classify, generate and translate. `TASKS` maps names to classes."""

from triform.config import TaskName
from triform.tasks.batch import Batch, Dataset
from triform.tasks.classify import Classify
from triform.tasks.generate import Generate
from triform.tasks.prediction import Prediction
from triform.tasks.task import PreparedTask, Task
from triform.tasks.translate import Translate

TASKS: dict[TaskName, type[Task]] = {"classify": Classify, "generate": Generate, "translate": Translate}

__all__ = ["TASKS", "Batch", "Classify", "Dataset", "Generate", "Prediction", "PreparedTask", "Task", "Translate"]
