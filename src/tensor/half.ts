/** IEEE halves: 1 sign, 5 exponent and 10 fraction bits, held as those bits. */

function valueOf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

let everyHalf: Float32Array | undefined;
/** The values of all halves by their bits, made where there are some to read. */
export const halfValues = (): Float32Array => (everyHalf ??= Float32Array.from({ length: 1 << 16 }, (_, bits) => valueOf(bits)));

/** The largest half. */
export const largestHalf = 65504;

/** Writes to `into` the halves nearest to `values`, ties to even; beyond {@link largestHalf} rounded, an infinity. */
export function toHalves(values: Float32Array, into: Uint16Array): void {
  const all = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < all.length; i++) {
    const bits = all[i]!;
    into[i] = ((bits >>> 16) & 0x8000) | magnitude(bits & 0x7fff_ffff, values[i]!);
  }
}

/** @param bits of |value| as float32 */
function magnitude(bits: number, value: number): number {
  if (bits > 0x7f80_0000) return 0x7e00;
  // 65520 is half-way to what would come after the largest half.
  if (bits >= 0x477f_f000) return 0x7c00;
  if (bits < 0x3880_0000) return toEven(Math.abs(value) * 2 ** 24);
  // The exponent counts from another zero; what rounds up past the fraction carries into it.
  const shifted = bits - 0x3800_0000;
  return (shifted + 0xfff + ((shifted >>> 13) & 1)) >>> 13;
}

function toEven(x: number): number {
  const below = Math.floor(x);
  const rest = x - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}
