package admin

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
)

// A row of a file or of the database is a JSON array of the values of its columns. The SQL here
// makes such arrays of rows, and rows of such arrays.

// columnSQL reads and writes a column. %[1]s is the column, %[2]d its place in an array r.
type columnSQL struct{ read, write string }

const listSQL = "CASE jsonb_typeof(r->%[2]d) WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(r->%[2]d)) END"

var columnSQLs = map[columns.Kind]columnSQL{
	columns.Text:     {"%[1]s", "r->>%[2]d"},
	columns.Whole:    {"%[1]s::text", "(r->>%[2]d)::bigint"},
	columns.Small:    {"%[1]s::text", "CASE WHEN r->>%[2]d IS NOT NULL THEN greatest(least((r->>%[2]d)::bigint, 2147483647), -2147483647)::int END"}, // a constraint says what is allowed
	columns.Amount:   {"coalesce(%[1]s::text, '" + policyfile.Unlimited + "')", "nullif(r->>%[2]d, '" + policyfile.Unlimited + "')::bigint"},
	columns.Flag:     {"%[1]s::text", "(r->>%[2]d)::boolean"},
	columns.List:     {"%[1]s", listSQL},
	columns.Networks: {"%[1]s::text[]", "(" + listSQL + ")::cidr[]"},
	columns.Duration: {"(extract(epoch FROM %[1]s) * 1000000)::bigint || 'us'", durationSQL},
	columns.Moment:   {momentSQL(endSQL("%[1]s")), "replace(r->>%[2]d, 'never', 'infinity')::timestamptz"},
	columns.Range:    {"coalesce(" + momentSQL("lower("+boundedSQL+")") + ", '') || '..' || coalesce(" + momentSQL("upper("+boundedSQL+")") + ", '')", "tstzrange(nullif(split_part(r->>%[2]d, '..', 1), '')::timestamptz, nullif(split_part(r->>%[2]d, '..', 2), '')::timestamptz)"},
	columns.Day:      {"%[1]s::text", "(r->>%[2]d)::date"},
	columns.Digest:   {"encode(%[1]s, 'hex')", "decode(r->>%[2]d, 'hex')"},
	// No key has the id 0, so a constraint refuses a digest that no key has.
	columns.KeyDigest: {"(SELECT encode(k.digest, 'hex') FROM rate_limit_api_keys k WHERE k.id = %[1]s)",
		"CASE WHEN r->>%[2]d IS NOT NULL THEN coalesce((SELECT k.id FROM rate_limit_api_keys k WHERE k.digest = decode(r->>%[2]d, 'hex')), 0) END"},
}

// durationSQL reads a number and a unit of policyfile. The interval has no days, because their lengths
// vary.
const durationSQL = `(regexp_match(r->>%[2]d, '^[0-9]+'))[1]::bigint * CASE substring(r->>%[2]d FROM '[a-z]+$')
	WHEN 'd' THEN interval '24 h' WHEN 'h' THEN '1 h' WHEN 'm' THEN '1 min' WHEN 's' THEN '1 s' WHEN 'ms' THEN '1 ms' WHEN 'us' THEN '1 us' END`

// boundedSQL is a range whose begin belongs to it, and whose end does not.
var boundedSQL = "tstzrange(" + beginSQL("(lower(%[1]s) + CASE WHEN lower_inc(%[1]s) THEN interval '0' ELSE '1 us' END)") + ", " +
	endSQL("(upper(%[1]s) + CASE WHEN upper_inc(%[1]s) THEN interval '1 us' ELSE '0' END)") + ")"

// momentSQL is a time as text.
func momentSQL(expression string) string {
	return "to_char(" + expression + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
}

// writeSQL is the SQL of the value of a column, which has a place in an array r.
func writeSQL(c *columns.Column, place int) string {
	return fmt.Sprintf(columnSQLs[c.Kind].write, c.Name, place)
}

// toJSON is an array of values.
func toJSON(values []any) string {
	text, _ := json.Marshal(values) // texts, lists of texts, and null
	return string(text)
}

// readSQL is the SQL of a column as a value.
func readSQL(t *policyfile.Table, i int) string {
	return fmt.Sprintf(columnSQLs[t.Columns[i].Kind].read, "t."+t.Columns[i].Name)
}

func readRowsSQL(t *policyfile.Table) string {
	var values []string
	for i := range t.Columns {
		values = append(values, readSQL(t, i))
	}
	return "SELECT json_build_array(" + strings.Join(values, ", ") + ")::text FROM " + t.Name + " t"
}

// fromRows are the rows of the parameter.
const fromRows = " FROM jsonb_array_elements($1::jsonb) AS rows(r)"

func insertRowsSQL(t *policyfile.Table) string {
	var names, values []string
	for i := range t.Columns {
		if !t.Columns[i].Late {
			names, values = append(names, t.Columns[i].Name), append(values, writeSQL(&t.Columns[i], i))
		}
	}
	return "INSERT INTO " + t.Name + " (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") + fromRows
}

func updateRowsSQL(t *policyfile.Table) string {
	var sets []string
	for i := range t.Columns {
		if !t.Columns[i].Key {
			sets = append(sets, t.Columns[i].Name+" = "+writeSQL(&t.Columns[i], i))
		}
	}
	return "UPDATE " + t.Name + " t SET " + strings.Join(sets, ", ") + fromRows + " WHERE " + isRowSQL(t)
}

// bareRowsSQL takes the amounts of overrides away.
func bareRowsSQL(t *policyfile.Table) string {
	return "UPDATE " + t.Name + " t SET events = NULL, burst = NULL" + fromRows + " WHERE " + isRowSQL(t)
}

func deleteRowsSQL(t *policyfile.Table) string {
	return "DELETE FROM " + t.Name + " t USING" + strings.TrimPrefix(fromRows, " FROM") + " WHERE " + isRowSQL(t)
}

// isRowSQL holds for the row of the table that a row of the parameter names.
func isRowSQL(t *policyfile.Table) string {
	var all []string
	for i := range t.Columns {
		switch c := &t.Columns[i]; {
		case c.Key && c.Kind == columns.Range:
			all = append(all, fmt.Sprintf(boundedSQL+" = ", "t."+c.Name)+writeSQL(&t.Columns[i], i))
		case c.Key && c.Needed:
			all = append(all, "t."+c.Name+" = "+writeSQL(&t.Columns[i], i))
		case c.Key:
			all = append(all, "t."+c.Name+" IS NOT DISTINCT FROM "+writeSQL(&t.Columns[i], i))
		}
	}
	return strings.Join(all, " AND ")
}

func sortedKeys[V any](of map[string]V) []string {
	var all []string
	for key := range of {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}
