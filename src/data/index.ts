export {
  type AnyColumn, type Cell, type Column, type ColumnType, byteColumn, computedColumn, floatColumn, integerColumn, narrowColumn,
} from './column.ts';
export { type CsvOptions, type Feature, readCsv } from './csv.ts';
export {
  type Batch, type BatchBuffers, type Dataset, batchOf, datasetFromTensors, datasetOf, withLabels,
} from './dataset.ts';
export { decodeIdx } from './idx.ts';
export { type SafetensorsOptions, classesEntry, readSafetensorsData } from './arrays.ts';
export { type IdxOptions, type Split, readIdxFolder, readIdxPair } from './images.ts';
export { type SetName, readNamed, setNames } from './named.ts';
export type { Normalize } from './normalise.ts';
export { type PhotoOptions, readPhotos } from './photos.ts';
export { type SequenceOptions, ignored, readSequences } from './sequences.ts';
export { type StripOptions, readStrips } from './strips.ts';
export { type TextOptions, readText } from './text.ts';
export { type TextTokenizer, readTokenizer } from './tokens.ts';
export { type DataSpec, type LoadOptions, loadData } from './spec.ts';
export { type Expectations, requireRows, requireShape, validateDataset } from './validate.ts';
