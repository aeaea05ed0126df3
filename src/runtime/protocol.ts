import type { TypedArrays } from '../tensor/tensor.ts';

/** A tensor as it crosses between threads. */
export interface WireTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data: TypedArrays[keyof TypedArrays];
}

export type WorkerRequest =
  | {
    readonly kind: 'create'; readonly model: Uint8Array; readonly threads: number; readonly profile: string | undefined;
    /** An output of the model that cannot be read. */
    readonly unread: string;
    readonly frozen: boolean;
    /** Whether pads may become those of what follows. */
    readonly fusesPads: boolean;
  }
  | {
    readonly kind: 'run'; readonly feeds: readonly [string, WireTensor][];
    /** Where each output is written; null where its size is not known before. */
    readonly outputs: readonly [string, WireTensor | null][];
  }
  | { readonly kind: 'release' };

export interface WorkerReply {
  readonly error?: string;
  readonly outputs?: readonly [string, WireTensor][];
  readonly feeds?: readonly [string, WireTensor][];
}
