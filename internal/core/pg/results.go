package pg

import (
	"encoding/binary"
	"errors"
)

// ErrColumns is the error of a result that does not have the columns of its statement.
var ErrColumns = errors.New("ratelimit/postgres: the server's answer does not have the statement's columns")

// Columns returns the columns of all rows, as slices of result. A column that is NULL is nil.
func Columns(result []byte) ([][]byte, error) {
	var columns [][]byte
	for rest := result; len(rest) > 0; {
		if len(rest) < 4 {
			return nil, ErrColumns
		}
		size := int(int32(binary.BigEndian.Uint32(rest)))
		rest = rest[4:]
		if size < 0 {
			columns = append(columns, []byte(nil))
			continue
		}
		if size > len(rest) {
			return nil, ErrColumns
		}
		columns = append(columns, rest[:size:size])
		rest = rest[size:]
	}
	return columns, nil
}

// Bigints returns the columns of all rows of a result with bigints or ints, and nil for an invalid result.
func Bigints(result []byte) []int64 {
	columns, err := Columns(result)
	if err != nil {
		return nil
	}
	var values []int64
	for _, column := range columns {
		values = append(values, Bigint(column))
	}
	return values
}

// Bigint returns the value of a bigint or int column, and 0 for a column of another size.
func Bigint(column []byte) int64 {
	switch len(column) {
	case 8:
		return int64(binary.BigEndian.Uint64(column))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(column)))
	}
	return 0
}
