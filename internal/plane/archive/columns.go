package archive

import (
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"
)

// kind is the type of a column.
type kind int

const (
	timestamp kind = iota // timestamptz: microseconds since 1970 in UTC
	bigint
	integer
	double
	text
	inet // an address or a network, as text
	texts
)

// column is a column of rate_limit_audit.
type column struct {
	name     string
	kind     kind
	nullable bool
}

// columns are those of rate_limit_audit, in their order. A partition with other columns is not
// archived: values would be lost.
var columns = []column{
	{"time", timestamp, false},
	{"cost", bigint, false},
	{"count", bigint, false},
	{"quota", bigint, true},
	{"remaining", bigint, true},
	{"key_id", bigint, true},
	{"retry_after_ms", bigint, true},
	{"duration_us", bigint, false},
	{"weight", double, false},
	{"status", integer, true},
	{"decision", text, false},
	{"reason", text, true},
	{"prefix", text, false},
	{"limit_name", text, true},
	{"key", text, true},
	{"user_id", text, true},
	{"tier", text, true},
	{"address", inet, true},
	{"host", text, true},
	{"method", text, true},
	{"path", text, true},
	{"node", text, false},
	{"region", text, true},
	{"also", texts, true},
}

// postgresType is the name of the type in Postgres.
func (k kind) postgresType() string {
	return [...]string{"timestamp with time zone", "bigint", "integer", "double precision", "text", "inet", "text[]"}[k]
}

// bytes is the length of a value of a fixed length, as Postgres sends it; 0 for others.
func (k kind) bytes() int {
	return [...]int{8, 8, 4, 8, 0, 0, 0}[k]
}

// node is the type of the column in a file.
func (c column) node() parquet.Node {
	var n parquet.Node
	var e encoding.Encoding = &parquet.RLEDictionary
	switch c.kind {
	case timestamp:
		n, e = parquet.Timestamp(parquet.Microsecond), &parquet.DeltaBinaryPacked
	case bigint:
		n = parquet.Int(64)
	case integer:
		n = parquet.Int(32)
	case double:
		n = parquet.Leaf(parquet.DoubleType)
	default:
		n = parquet.String()
	}
	n = parquet.Encoded(n, e)
	if c.kind == texts {
		n = parquet.List(parquet.Optional(n))
	}
	if c.nullable {
		n = parquet.Optional(n)
	}
	return n
}

// Definition levels of a nullable list of nullable elements. The level of any other value is 1
// if its column is nullable, else 0. The level of NULL is 0.
const (
	levelEmptyList   = 1
	levelNullElement = 2
	levelElement     = 3
)

// schema is the schema of the files.
func schema() *parquet.Schema {
	group := ordered{Group: parquet.Group{}}
	for _, c := range columns {
		group.Group[c.name] = c.node()
	}
	return parquet.NewSchema("rate_limit_audit", group)
}

// ordered is a group whose fields are in the order of columns. A parquet.Group sorts them by
// name.
type ordered struct{ parquet.Group }

func (o ordered) Fields() []parquet.Field {
	byName := make(map[string]parquet.Field, len(columns))
	for _, f := range o.Group.Fields() {
		byName[f.Name()] = f
	}
	fields := make([]parquet.Field, len(columns))
	for i, c := range columns {
		fields[i] = byName[c.name]
	}
	return fields
}
