/** How messages name a row: people count from 1. */
export const showRow = (row: number): string => `row ${row + 1} (counting from 1)`;
