package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/parquet-go/parquet-go"
	"github.com/shopspring/decimal"
)

// readTable calls read for each row of a partition. read must not retain the row.
func readTable(ctx context.Context, tx pgx.Tx, p partition, columns []column,
	read func(parquet.Row) error) error {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.sql()
	}
	// DescribeExec first asks the server for the types of the columns, so that pgx can request binary values.
	result, err := tx.Query(ctx, "SELECT "+strings.Join(names, ", ")+" FROM ("+p.source+") s",
		pgx.QueryExecModeDescribeExec)
	if err != nil {
		return err
	}
	defer result.Close()
	var row parquet.Row
	for result.Next() {
		values, err := result.Values()
		row = row[:0]
		for i := 0; err == nil && i < len(values); i++ {
			row, err = columns[i].appendTo(row, i, values[i])
		}
		if err == nil {
			err = read(row)
		}
		if err != nil {
			return err
		}
	}
	return result.Err()
}

// These sizes bound memory: writing or reading a file needs the memory of one row group, and the buffers.
const (
	groupRows       = 50_000
	pageBytes       = 256 << 10
	dictionaryBytes = 1 << 20 // maximum size of a column's dictionary
	readBytes       = 1 << 20 // read buffer of a column
)

// writeFile writes the rows that are in no file to a new one, and returns their number. inFiles has the
// numbers of the files' rows by digest: the table may have equal rows, so each row of a file matches only one
// row of the table. A row of another day is an error.
func writeFile(ctx context.Context, tx pgx.Tx, file *os.File, p partition, columns []column,
	inFiles map[digest]int) (rows int64, err error) {
	w := parquet.NewGenericWriter[any](file, schemaOf(p.table.name, columns),
		parquet.Compression(&parquet.Zstd),
		parquet.MaxRowsPerRowGroup(groupRows),
		parquet.PageBufferSize(pageBytes),
		parquet.DictionaryMaxBytes(dictionaryBytes),
		parquet.DataPageStatistics(true),
		parquet.CreatedBy("pg_ratelimit", "", ""),
	)
	names, written := namesOf(w.Schema()), sha256.New()
	key, values := hasher{names: names, key: p.key}, hasher{names: names}
	timeColumn := slices.Index(names, "time")
	err = readTable(ctx, tx, p, columns, func(row parquet.Row) error {
		// A row of the ledger has a column with its day, and another time at which it was charged.
		t := time.UnixMicro(row[timeColumn].Int64()).UTC()
		if p.key == nil && (t.Before(p.day) || !t.Before(p.day.Add(dayLength))) {
			return &problem{fmt.Sprintf("the table has a row of %s: must be of %s only",
				t.Format(time.RFC3339), dayName(p.day))}
		}
		d := key.digest(row)
		if inFiles[d]--; inFiles[d] >= 0 {
			return nil
		}
		rows++
		d = values.digest(row)
		written.Write(d[:])
		_, err := w.WriteRows([]parquet.Row{row})
		return err
	})
	if err = errors.Join(err, w.Close()); err != nil {
		return 0, err
	}
	read := sha256.New()
	f, err := openFile(file)
	if err == nil {
		err = eachDigest(f, nil, func(d digest) { read.Write(d[:]) })
	}
	if err == nil && !bytes.Equal(read.Sum(nil), written.Sum(nil)) {
		err = &problem{"it has other rows than the table"}
	}
	if err != nil {
		err = fmt.Errorf("reading %s back: %w", file.Name(), err)
	}
	return rows, err
}

func openFile(s source) (*parquet.File, error) {
	size, err := s.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	return parquet.OpenFile(s, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true),
		parquet.ReadBufferSize(readBytes))
}

// namesOf returns the names of the columns of a file.
func namesOf(s *parquet.Schema) []string {
	var names []string
	for _, path := range s.Columns() {
		names = append(names, path[0])
	}
	return names
}

// eachDigest calls read with the digest of each row of a file. key is as in hasher.
func eachDigest(f *parquet.File, key []string, read func(digest)) error {
	reader := parquet.NewGenericReader[any](f, f.Schema())
	defer reader.Close()
	h := hasher{names: namesOf(f.Schema()), key: key}
	_, err := parquet.CopyRows(parquet.RowWriterFunc(func(rows []parquet.Row) (int, error) {
		for _, row := range rows {
			read(h.digest(row))
		}
		return len(rows), nil
	}), reader)
	return err
}

// digest identifies the values of a row: rows with equal digests are equal, or have the same key.
type digest [16]byte

// hasher computes digests.
type hasher struct {
	names []string // names of the columns
	key   []string // the columns that count; nil: all
	value []byte
}

// digest returns the digest of a row. The digest leaves out columns that are NULL. So a row in a file from
// before a column was added has the same digest as the row in the table, where the new column is NULL.
func (h *hasher) digest(row parquet.Row) digest {
	h.value = h.value[:0]
	for _, v := range row {
		if v.IsNull() && v.DefinitionLevel() == 0 ||
			h.key != nil && !slices.Contains(h.key, h.names[v.Column()]) {
			continue
		}
		h.value = append(append(h.value, h.names[v.Column()]...), 0, byte(v.DefinitionLevel()))
		if !v.IsNull() {
			data := v.Bytes()
			h.value = append(binary.AppendUvarint(h.value, uint64(len(data))), data...)
		}
	}
	sum := sha256.Sum256(h.value)
	return digest(sum[:16])
}

// column is a column of the query of a table. A file has a column with the same name.
type column struct {
	name, sqlType string
	notNull       bool
}

// valueKind describes the representation of a Postgres type in a file.
type valueKind struct {
	field reflect.Type // the type of a field in the schema
	tag   string       // the tag of that field
}

// valueKinds maps Postgres types to kinds. All other types are text.
var valueKinds = map[string]valueKind{
	"timestamp with time zone": {reflect.TypeFor[time.Time](), "timestamp(microsecond),delta"},
	"date":                     {reflect.TypeFor[int32](), "date"},
	"bigint":                   {reflect.TypeFor[int64](), "dict"},
	"integer":                  {reflect.TypeFor[int32](), "dict"},
	"double precision":         {reflect.TypeFor[float64](), "dict"},
	"numeric(38,9)":            {reflect.TypeFor[[decimalBytes]byte](), "decimal(9:38),dict"},
	"boolean":                  {reflect.TypeFor[bool](), "plain"},
	"text[]":                   {reflect.TypeFor[[]*string](), "list"},
	"bigint[]":                 {reflect.TypeFor[[]*int64](), "list"},
}

var textKind = valueKind{reflect.TypeFor[string](), "dict"}

func (c column) kind() valueKind {
	if k, ok := valueKinds[c.sqlType]; ok {
		return k
	}
	return textKind
}

func (c column) isList() bool { return strings.HasSuffix(c.kind().tag, "list") }

// sql returns the SQL expression of the column's value.
func (c column) sql() string {
	name := pgx.Identifier{c.name}.Sanitize()
	_, hasKind := valueKinds[c.sqlType]
	switch {
	case hasKind:
		return name
	case c.sqlType == "inet": // abbrev omits the prefix length of a single address
		return "abbrev(" + name + ")"
	}
	return name + "::text"
}

// columnsOf returns the columns of the query of a partition in their order. Those that are columns of a table
// without NULL have none.
func columnsOf(ctx context.Context, tx pgx.Tx, p partition) ([]column, error) {
	query, err := tx.Prepare(ctx, "", p.source)
	if err != nil {
		return nil, err
	}
	columns := make([]column, len(query.Fields))
	for i, f := range query.Fields {
		c := &columns[i]
		c.name = f.Name
		if strings.ContainsAny(c.name, ",\"`\\") {
			return nil, &problem{fmt.Sprintf("%s has a column %q: the name must not have a comma, a "+
				"quotation mark or a backslash", p.name, c.name)}
		}
		if err := tx.QueryRow(ctx, "SELECT format_type($1, $2), coalesce((SELECT attnotnull FROM "+
			"pg_attribute WHERE attrelid = $3 AND attnum = $4), false)", f.DataTypeOID, f.TypeModifier,
			f.TableOID, f.TableAttributeNumber).Scan(&c.sqlType, &c.notNull); err != nil {
			return nil, err
		}
	}
	return columns, nil
}

// schemaOf returns the schema of a file. It builds the schema from a struct type, because other kinds of
// schemas sort the columns by name.
func schemaOf(table string, columns []column) *parquet.Schema {
	fields := make([]reflect.StructField, len(columns))
	for i, c := range columns {
		k := c.kind()
		tag, element := c.name, ""
		switch {
		case c.isList():
			tag += ",optional"
			element = ` parquet-element:",optional,dict"`
		case !c.notNull:
			tag += ",optional"
			k.field, k.tag = reflect.PointerTo(k.field), strings.TrimSuffix(k.tag, ",delta")
		}
		fields[i] = reflect.StructField{Name: fmt.Sprintf("F%d", i), Type: k.field,
			Tag: reflect.StructTag(`parquet:"` + tag + "," + k.tag + `"` + element)}
	}
	return parquet.NewSchema(table, parquet.SchemaOf(reflect.New(reflect.StructOf(fields)).Interface()))
}

// A definition level determines which part of a value is NULL. In a column of lists, both a list and its
// elements may be NULL: a list that is NULL has level 0, and the constants are the other levels. In a column
// of other types, NULL has level 0. A value has level 1 there if the column may have NULL, and level 0 if it
// may not.
const (
	levelEmptyList   = 1
	levelNullElement = 2
	levelElement     = 3
)

// appendTo appends a value from the database to a row. i is the index of the column.
func (c column) appendTo(row parquet.Row, i int, from any) (parquet.Row, error) {
	value := parquet.NullValue()
	switch v := from.(type) {
	case nil:
	case pgtype.InfinityModifier:
		return row, &problem{"the column " + c.name + " has a time that is infinite"}
	case time.Time:
		value = parquet.ValueOf(v.UnixMicro())
		if c.sqlType == "date" {
			value = parquet.ValueOf(int32(v.Unix() / int64(dayLength/time.Second)))
		}
	case pgtype.Numeric:
		if v.NaN {
			return row, &problem{"the column " + c.name + " has NaN"}
		}
		value = decimalOf(&v)
	case []any:
		return appendList(row, i, v), nil
	default:
		value = parquet.ValueOf(v)
	}
	level := 1
	if c.notNull || value.IsNull() {
		level = 0
	}
	return append(row, value.Level(0, level, i)), nil
}

// decimalBytes is the size of a decimal of 38 digits.
const decimalBytes = 16

// decimalOf returns a number with nine decimals: its billionths as a big-endian two's complement.
func decimalOf(v *pgtype.Numeric) parquet.Value {
	n := decimal.NewFromBigInt(v.Int, v.Exp+9).BigInt() // further digits are 0
	if n.Sign() < 0 {
		n.Add(n, new(big.Int).Lsh(big.NewInt(1), 8*decimalBytes))
	}
	return parquet.FixedLenByteArrayValue(n.FillBytes(make([]byte, decimalBytes)))
}

// appendList appends a list to a row. Its elements may be NULL.
func appendList(row parquet.Row, column int, list []any) parquet.Row {
	if len(list) == 0 {
		return append(row, parquet.NullValue().Level(0, levelEmptyList, column))
	}
	for i, element := range list {
		level := levelElement
		if element == nil {
			level = levelNullElement
		}
		row = append(row, parquet.ValueOf(element).Level(min(i, 1), level, column))
	}
	return row
}
