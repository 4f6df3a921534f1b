"""Every knob and every default, once. Needs pydantic only: no torch, no megatron, no vllm.

A field is documented where it stands, with its unit. A rule across fields is a method whose
name says the rule; rules refuse and never change a value. ``config_file`` reads YAML into this.
"""

from megatron_corew.config.inputs import DataConfig, ModelConfig, RunConfig
from megatron_corew.config.layout import ParallelConfig, PrecisionConfig
from megatron_corew.config.rewards import AnswersConfig, ShapingConfig
from megatron_corew.config.sampling import RolloutConfig, ServersConfig
from megatron_corew.config.sections import Count, NotNegative, Positive, Section, Share
from megatron_corew.config.updates import LossConfig, OptimizerConfig, TeacherConfig
from megatron_corew.config.watching import (
    CheckpointConfig,
    EvaluateConfig,
    MonitorConfig,
    ObserveConfig,
)
from megatron_corew.config.whole import Config

__all__ = [
    "AnswersConfig",
    "CheckpointConfig",
    "Config",
    "Count",
    "DataConfig",
    "EvaluateConfig",
    "LossConfig",
    "ModelConfig",
    "MonitorConfig",
    "NotNegative",
    "ObserveConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Positive",
    "PrecisionConfig",
    "RolloutConfig",
    "RunConfig",
    "Section",
    "ServersConfig",
    "ShapingConfig",
    "Share",
    "TeacherConfig",
]
