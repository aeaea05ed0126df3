import type { Composite } from './composite.ts';
import type { Operator } from './operator.ts';

/** Recurrent layers over a sequence. */
export const recurrent = {
} satisfies Record<string, Operator | Composite>;
