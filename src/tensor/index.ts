export * from './tensor.ts';
export {
  type Safetensors, type SafetensorsEntry, type SafetensorsHeader, decodeSafetensors, encodeSafetensors, readSafetensorsHeader,
  safetensorsChunks,
} from './safetensors.ts';
