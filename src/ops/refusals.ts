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
  'String*': text, RegexFullMatch: text, TfIdfVectorizer: text,
  ImageDecoder: {
    reason: 'it decodes compressed images, whose sizes only the data knows',
    fix: 'decode images before the model (the data options do), and cut the model behind this node',
  },
  If: control, Loop: control, Scan: control,
  'ai.onnx.ml:ZipMap': dictionaries, 'ai.onnx.ml:DictVectorizer': dictionaries, 'ai.onnx.ml:CastMap': dictionaries,
  'ai.onnx.ml:TreeEnsemble*': trees, 'ai.onnx.ml:SVM*': kernelMachine,
  'ai.onnx.ml:CategoryMapper': categories, 'ai.onnx.ml:LabelEncoder': categories, 'ai.onnx.ml:OneHotEncoder': categories,
  'ai.onnx.preview.training:*': trainingStep,
};

const fits = (pattern: string, key: string): boolean =>
  (pattern.endsWith('*') ? key.startsWith(pattern.slice(0, -1)) : key === pattern);

/** Why an operator outside the table is refused; undefined where it is merely unknown. */
export function refusalOf(key: string): NoGradient | undefined {
  const found = Object.keys(refusals).filter((pattern) => fits(pattern, key)).sort((a, b) => b.length - a.length)[0];
  return found === undefined ? undefined : refusals[found];
}
