/* A click on a column's head sorts the table by it, a second one the other way round. */
'use strict';
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.tHead.rows[0].cells];
  for (const row of table.tBodies[0].rows) { /* on phones, each number has its head beside it */
    heads.forEach((head, column) => { row.cells[column].dataset.head = head.textContent; });
  }
  heads.forEach((head, column) => head.querySelector('button').addEventListener('click', () => {
    const up = head.getAttribute('aria-sort') !== 'ascending';
    const value = (row) => {
      const text = row.cells[column].textContent;
      const number = Number(text.split(' ')[0]); /* of "-0.0123 ± 0.0045", the mean */
      return text === '' || Number.isNaN(number) ? text : number;
    };
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? 1 : -1) * order(value(a), value(b)));
    heads.forEach((other) => other.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    table.tBodies[0].append(...rows);
  }));
}
