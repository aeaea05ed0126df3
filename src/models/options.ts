import { z } from 'zod';
import { initialiserNames } from './initialisers.ts';
import { activationNames } from './network.ts';

/** A number of channels, features or classes. */
export const width = z.number().int().positive();
export const activation = z.enum(activationNames);
export const initialisation = z.enum(initialiserNames);
