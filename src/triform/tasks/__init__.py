"""What can be learned: one class a task, chosen by name."""

from triform.config import TaskName
from triform.tasks.classify import Classify
from triform.tasks.generate import Generate
from triform.tasks.task import Batch, Dataset, Prediction, PreparedTask, Task
from triform.tasks.translate import Translate

TASKS: dict[TaskName, type[Task]] = {"classify": Classify, "generate": Generate, "translate": Translate}

__all__ = ["TASKS", "Batch", "Classify", "Dataset", "Generate", "Prediction", "PreparedTask", "Task", "Translate"]
