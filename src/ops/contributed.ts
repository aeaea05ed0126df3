import type { Composite } from './composite.ts';
import { contributedAttention } from './contributed-attention.ts';
import { fusedNorms } from './fused-norms.ts';
import { fusedProducts } from './fused-products.ts';
import { lowBits } from './low-bits.ts';
import type { Operator } from './operator.ts';
import { contributedRotaryEmbedding } from './rotary.ts';

/** Operators that only ONNX Runtime's optimizer and its tools write. */
export const contributed = {
  ...fusedNorms, ...fusedProducts, ...lowBits, ...contributedAttention,
  'com.microsoft:RotaryEmbedding': contributedRotaryEmbedding,
} satisfies Record<string, Operator | Composite>;
