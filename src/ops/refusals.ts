import type { NoGradient } from './operator.ts';

/** Reasons that several operators share. */
const sizesFromData: NoGradient = {
  reason: 'how many values it gives out depends on the values it is given, and every shape must be known before the graph runs',
  fix: 'cut the model in front of it (choose an output before this node), and do this step outside the model',
};

const lists: NoGradient = {
  reason: 'it works on lists of tensors, and only tensors of fixed shape are supported',
  fix: 'export the model so that the list is unrolled into tensors (Split and Concat), or choose an output before the list',
};

const optionals: NoGradient = {
  reason: 'it works on values that may be absent, and only tensors of fixed shape are supported',
  fix: 'export the model with those values always present, or always absent',
};

const randomness: NoGradient = {
  reason: 'it draws random numbers inside the graph, which could be neither recorded, repeated nor accounted for',
  fix: 'export the model in inference mode, or make the random values an input of the model',
};

const quantised: NoGradient = {
  reason: 'it computes in whole numbers, through which no gradient flows',
  fix: 'bring the float model from before quantisation, or one in which weights are kept as DequantizeLinear nodes',
};

const generation: NoGradient = {
  reason: 'it belongs to generating text token by token, and not to the model that is trained',
  fix: 'export the model itself, for whole sequences and without a cache of the past',
};

const packedBatch: NoGradient = {
  reason: 'it lays the tokens of all examples into one axis without padding, where examples cannot be told apart by shape',
  fix: 'export or optimise the model with padded batches (no packing mode)',
};

const layout: NoGradient = {
  reason: 'it is written for the memory layout of one kind of processor, by ONNX Runtime at its highest optimisation level',
  fix: 'bring the file from before optimisation, or optimise it at the level "extended"',
};

const compiled: NoGradient = {
  reason: 'it holds a part of the model compiled for one device, whose computation cannot be seen',
  fix: 'bring the ONNX file from before it was compiled',
};

const fewBits: NoGradient = {
  reason: 'it computes with weights in a format of few bits that cannot be read here',
  fix: 'bring the float model, or one whose weights are in MatMulNBits or DequantizeLinear nodes',
};

const text: NoGradient = {
  reason: 'it works on text, and only tensors of numbers are supported',
  fix: 'turn text into numbers before the model (token ids, features), and cut the model behind this node',
};

const control: NoGradient = {
  reason: 'it runs a graph within the graph, as often as values computed by the model say',
  fix: 'export the model with the loop unrolled (a fixed number of steps), or with LSTM, GRU or RNN nodes',
};

const dictionaries: NoGradient = {
  reason: 'it works on dictionaries, and only tensors of numbers are supported',
  fix: 'export the model without it (for scikit-learn, the option zipmap=False), or choose an output before this node',
};

const trees: NoGradient = {
  reason: 'a decision tree is constant between its thresholds, so no gradient flows through it and nothing in it can be trained by gradients',
  fix: 'train a differentiable model (linear, multilayer perceptron) on the same features',
};

const kernelMachine: NoGradient = {
  reason: 'a support vector machine holds training examples as its weights, which no clipping can make private',
  fix: 'train a linear model or a multilayer perceptron on the same features',
};

const categories: NoGradient = {
  reason: 'it maps categories by tables of strings or numbers, and only arithmetic on tensors of numbers is supported',
  fix: 'encode the categories before the model (the data options do), and cut the model behind this node',
};

const regions: NoGradient = {
  reason: 'it cuts regions out of whichever image of the batch an index names, so the examples cannot be kept apart',
  fix: 'train the part of the model in front of it, or a model whose inputs are the regions themselves',
};

const trainingStep: NoGradient = {
  reason: 'it is a part of a training loop and not of a model',
  fix: 'bring the inference graph of the model; ghostgrad derives gradients and updates itself',
};

/**
 * Operators that will not be supported, and what to do instead, by key of the table; a trailing `*` stands for any
 * ending. The longest key that fits counts.
 */
export const refusals: Readonly<Record<string, NoGradient>> = {
  Compress: sizesFromData, Unique: sizesFromData, NonMaxSuppression: sizesFromData,
  'Sequence*': lists, SplitToSequence: lists, ConcatFromSequence: lists,
  'Optional*': optionals,
  'Random*': randomness, Bernoulli: randomness, Multinomial: randomness,
  'QLinear*': quantised, ConvInteger: quantised, MatMulInteger: quantised, 'DynamicQuantize*': quantised,
  'com.microsoft:QLinear*': quantised, 'com.microsoft:QOrdered*': quantised, 'com.microsoft:QAttention': quantised,
  'com.microsoft:QEmbedLayerNormalization': quantised, 'com.microsoft:QGemm': quantised, 'com.microsoft:QMoE': quantised,
  'com.microsoft:DynamicQuantize*': quantised, 'com.microsoft:MatMulInteger*': quantised,
  'com.microsoft:MulInteger': quantised, 'com.microsoft:ReduceSumInteger': quantised, 'com.microsoft:NhwcMaxPool': quantised,
  'com.microsoft:MatMulBnb4': fewBits, 'com.microsoft:MatMulFpQ4': fewBits, 'com.microsoft:MatMulBlockQuantized*': fewBits,
  'com.microsoft:GemmFloat8': fewBits, 'com.microsoft:DequantizeBFP': fewBits, 'com.microsoft:DequantizeWithOrder': fewBits,
  'com.microsoft:BeamSearch': generation, 'com.microsoft:WhisperBeamSearch': generation, 'com.microsoft:GreedySearch': generation,
  'com.microsoft:Sampling': generation, 'com.microsoft:NGramRepeatBlock': generation, 'com.microsoft:DecoderMasked*': generation,
  'com.microsoft:PagedAttention': generation,
  'com.microsoft:Packed*': packedBatch, 'com.microsoft:RemovePadding': packedBatch, 'com.microsoft:RestorePadding': packedBatch,
  'com.microsoft.nchwc:*': layout, 'com.microsoft:Nhwc*': layout, 'com.microsoft:EPContext': compiled,
  'com.microsoft:Tokenizer': text,
  'String*': text, RegexFullMatch: text, TfIdfVectorizer: text,
  ImageDecoder: {
    reason: 'it decodes compressed images, whose sizes only the data knows',
    fix: 'decode images before the model (the data options do), and cut the model behind this node',
  },
  RoiAlign: regions, MaxRoiPool: regions,
  MaxUnpool: {
    reason: 'its indices count places in the whole batch, so nothing keeps one example from writing into another',
    fix: 'use Resize or ConvTranspose to enlarge images',
  },
  TensorScatter: {
    reason: 'it updates the cache of a text generator, and a model that is trained reads whole sequences',
    fix: 'export the model without past keys and values (use_cache=False)',
  },
  If: control, Loop: control, Scan: control,
  'ai.onnx.ml:ZipMap': dictionaries, 'ai.onnx.ml:DictVectorizer': dictionaries, 'ai.onnx.ml:CastMap': dictionaries,
  'ai.onnx.ml:TreeEnsemble*': trees, 'ai.onnx.ml:SVM*': kernelMachine,
  'ai.onnx.ml:CategoryMapper': categories, 'ai.onnx.ml:LabelEncoder': categories,
  'ai.onnx.preview.training:*': trainingStep,
};

const fits = (pattern: string, key: string): boolean =>
  (pattern.endsWith('*') ? key.startsWith(pattern.slice(0, -1)) : key === pattern);

/** Why an operator outside the table is refused; undefined where it is merely unknown. */
export function refusalOf(key: string): NoGradient | undefined {
  const found = Object.keys(refusals).filter((pattern) => fits(pattern, key)).sort((a, b) => b.length - a.length)[0];
  return found === undefined ? undefined : refusals[found];
}
