"""A report as a page for a browser.

`write` puts the JSON of a report, plotly and the files of this folder into one file. In the browser, `tables.js` shows rows,
`nodes.js` the nodes by source line, `charts.js` the memory, and `main.js` the whole page. All text enters as text nodes.
"""
