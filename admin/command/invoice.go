package command

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"regexp"
	"strings"
)

var invoiceCommand = commandSpec{
	use:   "invoice USER",
	short: "Shows what a user and all below it have used of language models, by billing period and model",
	long: `Without times: in the billing period that is running. The rows are added up from the ledger, which
has for each request the users that were above its user then. PARENT is the nearest of them. CORRECTS is
the start of a period that was billed again.

The last line has the sums. PAYABLE is the sum of MONEY, rounded once to two decimals. --csv prints all
columns for spreadsheets (RFC 4180). A name that a spreadsheet would take for a formula begins with '.`,
	example: `invoice acme
invoice acme --from 2026-11-01 --until 2026-12-01
invoice acme --from 2026-11-01 --until 2026-12-01 --by user --csv > november.csv`,
	flags: []flag{
		{name: "from", kind: pastTime, usage: "settled since: an age such as 30d, or a time"},
		{name: "until", kind: moment, usage: "settled before this time"},
		{name: "by", kind: oneOf("user"), usage: "user: also by who has sent the requests"},
		toggle("csv", "print comma-separated values"),
	},
	emptyText: "Nothing was used.",
	beforeSQL: requireUser,
	runGo: func(c *invocation) error {
		asCSV := c.boolFlag("csv")
		switch {
		case c.json && asCSV:
			return invalid("--csv", "true", "given without --json")
		case c.json:
			return c.list(invoiceSQL("i.period", invoiceNumbers))
		}
		sums := strings.ReplaceAll(invoiceNumbers, ", ", "), sum(")
		rows, err := c.change(invoiceSQL("to_json(i.period) #>> '{}' AS period", invoiceNumbers+
			", NULL::numeric AS payable") + ` UNION ALL SELECT 'total', NULL, NULL, NULL, NULL, sum(` + sums +
			`), coalesce(round(sum(money), 2), 0.00),
	(SELECT max(r.currency) FROM rate_limit_ledger_retention r) FROM i
HAVING count(money) > 0 OR @csv::boolean`)
		switch {
		case err != nil:
			return err
		case !asCSV:
			return c.show(rows)
		}
		return c.printf("%s", redactKeys(csvOf(rows)))
	},
}

// invoiceNumbers lists the columns of an invoice that have numbers.
const invoiceNumbers = "requests, input, cache_read, cache_write, cache_write_1h, output, audio_input, " +
	"audio_cache_read, audio_output, image_input, image_output, search, estimated_input, " +
	"estimated_output, estimated_money, money"

// invoiceSQL returns the query for an invoice with the columns of a period and of numbers.
func invoiceSQL(period, numbers string) string {
	return `WITH i AS MATERIALIZED (SELECT * FROM rate_limit_invoice(@USER, @from::timestamptz,
	@until::timestamptz, @by::text IS NOT NULL))
SELECT ` + period + `, i.corrects, i."user", i.parent, i.model, ` + numbers + ", i.currency FROM i"
}

// csvOf returns rows that have the same fields as CSV, with a line of names. Lines end with CRLF. The setting
// UseCRLF of a csv.Writer would drop a CR in a value.
func csvOf(rows []json.RawMessage) string {
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	write := func(record []string) {
		_ = w.Write(record) // a Buffer does not fail
		w.Flush()
		text.Truncate(text.Len() - len("\n"))
		text.WriteString("\r\n")
	}
	for i, row := range rows {
		var names, values []string
		for _, f := range fieldsOf(row) {
			names, values = append(names, f.name), append(values, csvField(f.value))
		}
		if i == 0 {
			write(names)
		}
		write(values)
	}
	return text.String()
}

// formula matches a text that a spreadsheet may run: some ignore what stands before it, or read wide forms.
var formula = regexp.MustCompile(`^(?:[\s\pZ\pC]*[=+\-@＝＋－＠]|[\t\r\n])`)

// csvField returns the text of a value.
func csvField(value json.RawMessage) string {
	var text string
	switch {
	case string(value) == "null":
		return ""
	case json.Unmarshal(value, &text) != nil: // a number
		return string(value)
	case formula.MatchString(text):
		return "'" + text
	}
	return text
}
