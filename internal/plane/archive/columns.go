package archive

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/parquet-go/parquet-go"
)

// column is a column of a table. A file has a column with the same name.
type column struct {
	name, sqlType string
	notNull       bool
}

// valueKind is how the values of a type of Postgres are in a file.
type valueKind struct {
	field  reflect.Type // of a field, for the schema
	tag    string       // of the field
	target func() any   // makes what a value of the database is read into
}

// kinds has the types with a kind of their own. All others are text.
var kinds = map[string]valueKind{
	"timestamp with time zone": {reflect.TypeFor[time.Time](), "timestamp(microsecond),delta", func() any { return new(pgtype.Timestamptz) }},
	"date":                     {reflect.TypeFor[int32](), "date", func() any { return new(pgtype.Date) }},
	"bigint":                   {reflect.TypeFor[int64](), "dict", func() any { return new(pgtype.Int8) }},
	"integer":                  {reflect.TypeFor[int32](), "dict", func() any { return new(pgtype.Int4) }},
	"double precision":         {reflect.TypeFor[float64](), "dict", func() any { return new(pgtype.Float8) }},
	"text[]":                   {reflect.TypeFor[[]*string](), "list", func() any { return new([]*string) }},
	"bigint[]":                 {reflect.TypeFor[[]*int64](), "list", func() any { return new([]*int64) }},
}

var textKind = valueKind{reflect.TypeFor[string](), "dict", func() any { return new(pgtype.Text) }}

func (c column) kind() valueKind {
	if k, ok := kinds[c.sqlType]; ok {
		return k
	}
	return textKind
}

func (c column) list() bool { return strings.HasSuffix(c.kind().tag, "list") }

// sql is the value of the column, for SQL.
func (c column) sql() string {
	name := pgx.Identifier{c.name}.Sanitize()
	_, own := kinds[c.sqlType]
	switch {
	case own:
		return name
	case c.sqlType == "inet": // only its text says whether an address is a network
		return "abbrev(" + name + ")"
	}
	return name + "::text"
}

// columnsOf returns the columns of a table in their order.
func columnsOf(ctx context.Context, tx pgx.Tx, table string) ([]column, error) {
	rows, err := tx.Query(ctx, `SELECT attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, table)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		err = row.Scan(&c.name, &c.sqlType, &c.notNull)
		if err == nil && strings.ContainsAny(c.name, ",\"`\\") {
			err = &problem{fmt.Sprintf("%s has a column %q: the name must not have a comma, a quotation mark or a backslash", table, c.name)}
		}
		return c, err
	})
}

// schemaOf is the schema of a file. A struct keeps the order of the columns.
func schemaOf(table string, columns []column) *parquet.Schema {
	fields := make([]reflect.StructField, len(columns))
	for i, c := range columns {
		k := c.kind()
		tag, element := c.name, ""
		switch {
		case c.list():
			tag += ",optional"
			element = ` parquet-element:",optional,dict"`
		case !c.notNull:
			tag += ",optional"
			k.field = reflect.PointerTo(k.field)
		}
		fields[i] = reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: k.field, Tag: reflect.StructTag(`parquet:"` + tag + "," + k.tag + `"` + element)}
	}
	return parquet.NewSchema(table, parquet.SchemaOf(reflect.New(reflect.StructOf(fields)).Interface()))
}

// Definition levels of a list. Any list and any of its elements may be NULL. The level of any other
// value is 1 if its column may be NULL, else 0. The level of NULL is 0.
const (
	levelEmptyList   = 1
	levelNullElement = 2
	levelElement     = 3
)

// appendTo appends a value that was read from the database to a row. i is the number of the column.
func (c column) appendTo(row parquet.Row, i int, target any) (parquet.Row, error) {
	value := parquet.NullValue()
	switch v := target.(type) {
	case *pgtype.Timestamptz:
		if v.InfinityModifier != pgtype.Finite {
			return row, &problem{"the column " + c.name + " has a time that is infinite"}
		}
		if v.Valid {
			value = parquet.ValueOf(v.Time.UnixMicro())
		}
	case *pgtype.Date:
		if v.InfinityModifier != pgtype.Finite {
			return row, &problem{"the column " + c.name + " has a date that is infinite"}
		}
		if v.Valid {
			value = parquet.ValueOf(int32(v.Time.Unix() / int64(dayLength/time.Second)))
		}
	case *pgtype.Int8:
		if v.Valid {
			value = parquet.ValueOf(v.Int64)
		}
	case *pgtype.Int4:
		if v.Valid {
			value = parquet.ValueOf(v.Int32)
		}
	case *pgtype.Float8:
		if v.Valid {
			value = parquet.ValueOf(v.Float64)
		}
	case *pgtype.Text:
		if v.Valid {
			value = parquet.ValueOf(v.String)
		}
	case *[]*string:
		return appendList(row, i, *v), nil
	case *[]*int64:
		return appendList(row, i, *v), nil
	}
	level := 1
	if c.notNull || value.IsNull() {
		level = 0
	}
	return append(row, value.Level(0, level, i)), nil
}

// appendList appends a list that may be NULL, with elements that may be NULL.
func appendList[T string | int64](row parquet.Row, column int, list []*T) parquet.Row {
	switch {
	case list == nil:
		return append(row, parquet.NullValue().Level(0, 0, column))
	case len(list) == 0:
		return append(row, parquet.NullValue().Level(0, levelEmptyList, column))
	}
	for i, element := range list {
		value, level := parquet.NullValue(), levelNullElement
		if element != nil {
			value, level = parquet.ValueOf(*element), levelElement
		}
		row = append(row, value.Level(min(i, 1), level, column))
	}
	return row
}
