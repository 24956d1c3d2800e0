package archive

import (
	"reflect"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// auditRow is a row of rate_limit_audit: a field for each column but id, in their order, with the column's type in a
// file and in Postgres. A partition with other columns is not archived: values would be lost.
type auditRow struct {
	auditValues
	Also []*string `parquet:"also,optional,list" parquet-element:",optional,dict" sql:"text[]"`
}

// auditValues are the columns with one value.
type auditValues struct {
	Time         time.Time `parquet:"time,timestamp(microsecond),delta" sql:"timestamp with time zone"`
	Cost         int64     `parquet:"cost,dict" sql:"bigint"`
	Count        int64     `parquet:"count,dict" sql:"bigint"`
	Quota        *int64    `parquet:"quota,optional,dict" sql:"bigint"`
	Remaining    *int64    `parquet:"remaining,optional,dict" sql:"bigint"`
	KeyID        *int64    `parquet:"key_id,optional,dict" sql:"bigint"`
	RetryAfterMS *int64    `parquet:"retry_after_ms,optional,dict" sql:"bigint"`
	DurationUS   int64     `parquet:"duration_us,dict" sql:"bigint"`
	Weight       float64   `parquet:"weight,dict" sql:"double precision"`
	Status       *int32    `parquet:"status,optional,dict" sql:"integer"`
	Decision     string    `parquet:"decision,dict" sql:"text"`
	Reason       *string   `parquet:"reason,optional,dict" sql:"text"`
	Prefix       string    `parquet:"prefix,dict" sql:"text"`
	LimitName    *string   `parquet:"limit_name,optional,dict" sql:"text"`
	Key          *string   `parquet:"key,optional,dict" sql:"text"`
	UserID       *string   `parquet:"user_id,optional,dict" sql:"text"`
	Tier         *string   `parquet:"tier,optional,dict" sql:"text"`
	Address      *string   `parquet:"address,optional,dict" sql:"inet"`
	Host         *string   `parquet:"host,optional,dict" sql:"text"`
	Method       *string   `parquet:"method,optional,dict" sql:"text"`
	Path         *string   `parquet:"path,optional,dict" sql:"text"`
	Node         string    `parquet:"node,dict" sql:"text"`
	Region       *string   `parquet:"region,optional,dict" sql:"text"`
}

// schema is the schema of the files.
var schema = parquet.NewSchema("rate_limit_audit", parquet.SchemaOf(auditRow{}))

// Definition levels of a nullable list of nullable elements. The level of any other value is 1
// if its column is nullable, else 0. The level of NULL is 0.
const (
	levelEmptyList   = 1
	levelNullElement = 2
	levelElement     = 3
)

// appendTo appends the values of the row. Schema.Deconstruct cannot do so for a list that has NULL.
func (r *auditRow) appendTo(row parquet.Row) parquet.Row {
	row = valuesSchema.Deconstruct(row, &r.auditValues)
	also := len(columnNames) - 1
	switch {
	case r.Also == nil:
		return append(row, parquet.NullValue().Level(0, 0, also))
	case len(r.Also) == 0:
		return append(row, parquet.NullValue().Level(0, levelEmptyList, also))
	}
	for i, element := range r.Also {
		value, level := parquet.NullValue(), levelNullElement
		if element != nil {
			value, level = parquet.ValueOf(*element), levelElement
		}
		row = append(row, value.Level(min(i, 1), level, also))
	}
	return row
}

var valuesSchema = parquet.SchemaOf(auditValues{})

// columnNames and columnTypes are the columns as Postgres has them.
var columnNames, columnTypes = columns()

func columns() (names, types []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[auditRow]()) {
		if field.Anonymous {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("parquet"), ",")
		names, types = append(names, name), append(types, field.Tag.Get("sql"))
	}
	return names, types
}
