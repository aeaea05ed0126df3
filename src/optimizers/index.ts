export { type AdamOptions, adam, adamw } from './adam.ts';
export { type AdagradOptions, type LionOptions, type RmspropOptions, adagrad, lion, rmsprop } from './adaptive.ts';
export { type AverageSpec } from './average.ts';
export { type Gradients, type PlainGradient, type UsableGradient, plainGradient } from './gradient.ts';
export { type LambOptions, type LarsOptions, lamb, lars } from './layerwise.ts';
export { type Optimizer, type OptimizerState, type Parameters, type StateTensor } from './optimizer.ts';
export {
  type Denoise, type OptimizerName, type OptimizerSpec, type UpdateSpec, buildOptimizer, buildUpdate, denoisers, optimizerNames,
} from './registry.ts';
export {
  type Schedule, type ScheduleName, type ScheduleOptions, buildSchedule, constant, cosine, exponential, linear,
  scheduleNames, stepwise, withWarmup,
} from './schedules.ts';
export { type SgdOptions, sgd } from './sgd.ts';
