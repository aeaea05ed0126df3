export { type CnnTanhOptions, cnnTanh } from './cnn-tanh.ts';
export { type InitialiserName, initialiserNames } from './initialisers.ts';
export { type MlpOptions, mlp } from './mlp.ts';
export { type Activation, activationNames } from './network.ts';
export { type ModelName, type ModelSpec, buildModel, isModelName, modelNames } from './registry.ts';
export { type VggName, type VggOptions, vgg } from './vgg.ts';
