package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// All rows of the policy that commands change are read and written here, as package policyfile has them.

// reads are the SQL of a column %[1]s as a value, by its kind. Of others it is the text.
var reads = map[columns.Kind]string{
	columns.Amount:   "coalesce(%[1]s::text, '" + policyfile.Unlimited + "')",
	columns.List:     "%[1]s",
	columns.Networks: "%[1]s::text[]",
	columns.Duration: "(extract(epoch FROM %[1]s) * 1000000)::bigint || 'us'",
	columns.Moment:   momentSQL(endSQL("%[1]s")),
	columns.Range: "coalesce(" + momentSQL("lower("+boundedSQL+")") + ", '') || '..' || coalesce(" +
		momentSQL("upper("+boundedSQL+")") + ", '')",
	columns.Digest:    "encode(%[1]s, 'hex')",
	columns.KeyDigest: "(SELECT encode(k.digest, 'hex') FROM rate_limit_api_keys k WHERE k.id = %[1]s)",
}

// boundedSQL is a range whose begin belongs to it, and whose end does not.
var boundedSQL = "tstzrange(" + beginSQL("(lower(%[1]s) + CASE WHEN lower_inc(%[1]s) THEN interval '0' ELSE '1 us' END)") + ", " +
	endSQL("(upper(%[1]s) + CASE WHEN upper_inc(%[1]s) THEN interval '1 us' ELSE '0' END)") + ")"

// momentSQL is a time as text.
func momentSQL(expression string) string {
	return "to_char(" + expression + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
}

// readRows reads rows t of a table, of which conditions hold.
func (w *work) readRows(to *policyfile.Content, table int, conditions string, args ...any) {
	t := &policyfile.Tables[table]
	var values []string
	for i := range t.Columns {
		values = append(values, fmt.Sprintf(cmp.Or(reads[t.Columns[i].Kind], "%[1]s::text"), "t."+t.Columns[i].Name))
	}
	sql := "SELECT json_build_array(" + strings.Join(values, ", ") + ")::text FROM " + t.Name + " t" + conditions
	for _, text := range some[string](w, sql, args...) {
		var row []any
		err := json.Unmarshal([]byte(text), &row)
		if err == nil {
			err = to.AddRow(table, row)
		}
		w.fail(err)
	}
}

// written is a value of a column as the server reads it.
func written(c *columns.Column, value any) any {
	text, isText := value.(string)
	switch {
	case !isText || text == policyfile.Unlimited && c.Kind == columns.Amount:
		if list, isList := value.([]string); isList {
			return list
		}
		return nil
	case c.Kind == columns.Duration: // without days, because their lengths vary
		d, _ := ratelimit.ParseWindow(text)
		return intervalOf(d)
	case c.Kind == columns.Moment && text == columns.Never:
		return "infinity"
	case c.Kind == columns.Range:
		return "[" + strings.Replace(text, "..", ",", 1) + ")"
	case c.Kind == columns.Digest || c.Kind == columns.KeyDigest:
		return `\x` + text
	}
	return text
}

// statements do something with rows that the parameter has as an array of objects.
type statements struct{ create, change, remove, bare string }

// statementsOf are those on a table. To create sets no late columns, and to bare takes the amounts of overrides away.
func statementsOf(t *policyfile.Table) statements {
	var row, names, values, sets, same []string
	for i := range t.Columns {
		c := &t.Columns[i]
		kind, column, value := c.Kind, "t."+c.Name, "r."+c.Name
		nothing := "''"                // what unique indexes have for NULL
		if kind == columns.KeyDigest { // no key has the id 0, so a constraint refuses a digest that no key has
			kind, nothing = columns.Digest, "0"
			value = "CASE WHEN " + value + " IS NOT NULL THEN coalesce(" +
				"(SELECT k.id FROM rate_limit_api_keys k WHERE k.digest = " + value + "), 0) END"
		}
		row = append(row, c.Name+" "+kind.SQL())
		if !c.Late {
			names, values = append(names, c.Name), append(values, value)
		}
		switch {
		case !c.Key:
			sets = append(sets, c.Name+" = "+value)
		case kind == columns.Range:
			same = append(same, fmt.Sprintf(boundedSQL, column)+" = "+value)
		case c.Needed:
			same = append(same, column+" = "+value)
		default:
			same = append(same, fmt.Sprintf("coalesce(%s, %s) = coalesce(%s, %[2]s)", column, nothing, value))
		}
	}
	list := func(items []string) string { return strings.Join(items, ", ") }
	from := "jsonb_to_recordset($1::jsonb) AS r(" + list(row) + ")"
	where := " WHERE " + strings.Join(same, " AND ")
	return statements{
		create: "INSERT INTO " + t.Name + " (" + list(names) + ") SELECT " + list(values) + " FROM " + from,
		change: "UPDATE " + t.Name + " t SET " + list(sets) + " FROM " + from + where,
		remove: "DELETE FROM " + t.Name + " t USING " + from + where,
		bare:   "UPDATE " + t.Name + " t SET events = NULL, burst = NULL FROM " + from + where,
	}
}

// changeRows makes changes. An override and its limit must suit each other after each statement, so
// an override that changes with limits has no amount in between.
func (w *work) changeRows(changes []policyfile.Difference) {
	w.execute("SET CONSTRAINTS ALL DEFERRED")
	var all [columns.Count]statements
	for table := range all {
		all[table] = statementsOf(&policyfile.Tables[table])
	}
	do := func(table int, sql string, outcomes ...policyfile.Outcome) {
		var rows []*policyfile.Row
		for i := range changes {
			if c := &changes[i]; c.Table == table && slices.Contains(outcomes, c.Outcome) {
				rows = append(rows, c.Row)
			}
		}
		w.onRows(&policyfile.Tables[table], sql, rows)
	}
	do(columns.Overrides, all[columns.Overrides].remove, policyfile.Deleted)
	if slices.ContainsFunc(changes, func(c policyfile.Difference) bool { return c.Table == columns.Limits }) {
		do(columns.Overrides, all[columns.Overrides].bare, policyfile.Changed)
	}
	for table := range all {
		do(table, all[table].create, policyfile.Created)
		changed := []policyfile.Outcome{policyfile.Changed}
		if slices.ContainsFunc(policyfile.Tables[table].Columns, func(c columns.Column) bool { return c.Late }) {
			changed = append(changed, policyfile.Created)
		}
		do(table, all[table].change, changed...)
	}
	for table := columns.Overrides - 1; table >= 0; table-- {
		do(table, all[table].remove, policyfile.Deleted)
	}
}

// onRows runs a statement on rows.
func (w *work) onRows(t *policyfile.Table, sql string, rows []*policyfile.Row) {
	if len(rows) == 0 {
		return
	}
	objects := make([]map[string]any, len(rows))
	for i, r := range rows {
		objects[i] = map[string]any{}
		for j := range t.Columns {
			objects[i][t.Columns[j].Name] = written(&t.Columns[j], r.Fields[t.Columns[j].InFile()])
		}
	}
	text, err := json.Marshal(objects)
	w.fail(err)
	if w.execute(sql, string(text)); w.err != nil && len(rows) == 1 {
		w.err = aboutField(w.err, t, rows[0])
	}
}

// aboutField is an error that names the field of a row and its value, if the error is that of a
// constraint on it.
func aboutField(err error, t *policyfile.Table, r *policyfile.Row) error {
	for i := range t.Columns {
		c := &t.Columns[i]
		switch value := r.Fields[c.InFile()].(type) {
		case []string:
			err = withValue(err, c.Name, c.InFile(), strings.Join(value, ", "))
		case string:
			err = withValue(err, c.Name, c.InFile(), value)
		}
	}
	return err
}

func sortedKeys[V any](of map[string]V) []string {
	var all []string
	for key := range of {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}
