export {
  type Accountant,
  type AccountantName,
  type PrivacySpent,
  deltaCurve,
  deltaOf,
  epsilonOf,
  isApproximate,
} from './accountant.ts';
export { type Calibrated, type CalibrationOptions, calibrate, calibrateSampleRate, calibrateSteps } from './calibrate.ts';
export { type Allocation, allocations, noiseDeviations } from './allocation.ts';
export {
  type PrivacyEvent,
  type Runs,
  composed,
  gaussian,
  gaussianWithCounts,
  laplace,
  parseEvent,
  poissonSampled,
  repeatAndSelect,
  sampledWithoutReplacement,
  selfComposed,
  showEvent,
  truncatedPoissonSampled,
} from './events.ts';
export { type Group, type Groups, flatGroup, groupsOf, parametersOf, sensitivity, withNorms } from './groups.ts';
export { type PrivacyPlan, type PrivacyPlanOptions, eventOf, privacyPlan } from './plan.ts';
export { type Noise } from './lattice.ts';
export { type AdaptiveThresholds } from './quantiles.ts';
export { type Neighbors, type Sampling, checkRows, defaultNeighbors, hasFixedSize, samplings, supportedNeighbors, supportedSampling } from './sampling.ts';
export { type ClippedSum, type Privatised, assertPrivatised, clippedSum, privatise, privatiseGradually, privatiseInParallel, withMeasures } from './sum.ts';
export { type Measure, type MeasuresPlan } from './measures.ts';
export { type CertificateOptions, certificate } from './certificate.ts';
export { certificateSoFar } from './so-far.ts';
export { type Certificate, certificateJsonSchema, certificateSchema } from './certificate-schema.ts';
export { nextGroups } from './thresholds.ts';
export { type Problem } from './consistency.ts';
export { type Verification, verifyCertificate } from './verify.ts';
