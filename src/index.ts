/**
 * ghostgrad for Node: differentially private training of ONNX models. The parts that run anywhere have entries of their
 * own: `ghostgrad/graph`, `ghostgrad/tensor`, `ghostgrad/privacy/accountant` and others.
 */
export { GhostgradError, type ErrorParts } from './errors.ts';
export {
  type PrepareOptions,
  type Run,
  type StepReport,
  type TrainOptions,
  type TrainResult,
  prepare,
  train,
} from './training/train.ts';
export type { TrainingInput } from './training/materials.ts';
export { type EmbedOptions, type Embedded, embed } from './training/embed.ts';
export { type EvaluateOptions, type Evaluation, evaluate } from './training/evaluate.ts';
export { type PrivateEvaluateOptions, type PrivateEvaluation, evaluatePrivately } from './training/private-evaluation.ts';
export { type ExplainOptions, type Explanation, type ExplainedLayer, explain } from './training/explain.ts';
export { type CheckResult, check } from './training/check.ts';
export { verify } from './training/verify.ts';
export { type Exported, exportRun } from './training/export.ts';
export { type Expected, parseExpected } from './training/expected.ts';
export { type ModelReference, type Recipe, type RecipeInput, resolveRecipe } from './training/recipe.ts';
export { readRecipeFile } from './training/recipe-file.ts';
export type { LossName } from './training/loss.ts';
export { type Mode, modes } from './clipping/plan.ts';
export { type ModelName, type ModelSpec, buildModel, modelNames } from './models/index.ts';
export { openModel as readModel } from './training/model.ts';
export { type WriteModelOptions, writeModel } from './graph/file.ts';
export type { Graph, Node, TypedGraph, ValueInfo } from './graph/index.ts';
export { type DataSpec, type Dataset, datasetFromTensors, loadData } from './data/index.ts';
export {
  type Accountant,
  type Calibrated,
  type CalibrationOptions,
  type Certificate,
  type PrivacyEvent,
  type PrivacyPlan,
  type PrivacySpent,
  type Problem,
  type Verification,
  calibrate,
  certificateJsonSchema,
  certificateSchema,
  deltaOf,
  epsilonOf,
  gaussian,
  poissonSampled,
  selfComposed,
  verifyCertificate,
} from './privacy/index.ts';
export { type OptimizerSpec, type ScheduleOptions, optimizerNames, scheduleNames } from './optimizers/index.ts';
export { type Engine, type Session, type SessionOptions } from './runtime/engine.ts';
export { onnxruntimeEngine } from './runtime/node.ts';
export { type FloatTensor, type Tensor, float32, int64, tensor } from './tensor/tensor.ts';
