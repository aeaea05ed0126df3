import { randomFillSync } from 'node:crypto';
import { type FloatTensor, type Shape, sizeOf, tensor, zeros } from '../tensor/tensor.ts';
import { fillGaussian } from './gaussian.ts';
import { ratchet } from './ratchet.ts';
import { type Stream, stream } from './stream.ts';

/**
 * Draws for initial weights. Each parameter has a stream of its own by its name, so that its values depend on
 * the seed and the name alone, not on which layers were built before it.
 */
export interface InitialDraws {
  /** Uniform on (−bound, bound). */
  uniform(name: string, shape: Shape, bound: number): FloatTensor;
  /** N(0, deviation²). */
  normal(name: string, shape: Shape, deviation: number): FloatTensor;
  /**
   * N(0, deviation²) given |x| ≤ limit·deviation (limit 2 by default). The deviation of what comes out is smaller:
   * 0.8796 of `deviation` at limit 2.
   */
  truncatedNormal(name: string, shape: Shape, deviation: number, limit?: number): FloatTensor;
}

/** Zeros for every draw, at no cost: for those who ask a model for its shapes alone. */
export const noDraws: InitialDraws = (() => {
  const zero = (_name: string, shape: Shape): FloatTensor => zeros('float32', shape);
  return { uniform: zero, normal: zero, truncatedNormal: zero };
})();

/** Initial weights are public, so a seed here voids no guarantee; without one, the operating system's randomness. */
export function initialDraws(seed?: number | string): InitialDraws {
  const key =
    seed === undefined
      ? randomFillSync(new Uint8Array(32))
      : ratchet(seed)
          .advance()
          .noise.use((streamOf) =>
            Uint8Array.from(
              { length: 32 },
              (
                (s) => () =>
                  s.word() & 255
              )(streamOf('initial')),
            ),
          );
  const draw = (name: string, shape: Shape, fill: (values: Float32Array, source: Stream) => void): FloatTensor => {
    const values = new Float32Array(sizeOf(shape));
    fill(values, stream(key, `initial:${name}`));
    return tensor('float32', shape, values);
  };
  return {
    uniform: (name, shape, bound) =>
      draw(name, shape, (values, source) => {
        for (let i = 0; i < values.length; i++) values[i] = bound * (2 * source.uniform() - 1);
      }),
    normal: (name, shape, deviation) => draw(name, shape, (values, source) => fillGaussian(values, deviation, source)),
    truncatedNormal: (name, shape, deviation, limit = 2) =>
      draw(name, shape, (values, source) => {
        if (!(limit > 0)) throw new RangeError(`a truncated normal needs a positive limit, found ${limit}`);
        fillGaussian(values, 1, source);
        const again = new Float32Array(1);
        for (let i = 0; i < values.length; i++) {
          let x = values[i]!;
          for (; Math.abs(x) > limit; x = again[0]!) fillGaussian(again, 1, source);
          values[i] = deviation * x;
        }
      }),
  };
}
