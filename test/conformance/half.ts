/** Half-precision numbers, which ONNX Runtime takes and gives as their bits. */

export function fromHalf(bits: number): number {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** The nearest half to a finite number; ties go to the even one. */
export function toHalf(x: number): number {
  const sign = x < 0 || Object.is(x, -0) ? 0x8000 : 0;
  const size = Math.abs(x);
  const exponent = Math.max(-14, Math.floor(Math.log2(size || 1)));
  const units = roundToEven(size / 2 ** (exponent - 10));
  // A fraction that rounds up to 2 carries into the exponent by itself; without the leading 1 it is a subnormal.
  const bits = units < 1024 ? units : units - 1024 + ((exponent + 15) << 10);
  return sign | Math.min(bits, 0x7c00);
}

function roundToEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}
