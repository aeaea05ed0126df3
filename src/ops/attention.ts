import type { Composite } from './composite.ts';
import type { Operator } from './operator.ts';

/** Attention and the position encodings that go with it. */
export const attention = {
} satisfies Record<string, Operator | Composite>;
