// Package results reads the result of a statement, in the form of pgdb.Statement.Result.
package results

import (
	"encoding/binary"
	"errors"
)

// ErrColumns is the error of a result that does not have the columns of its statement.
var ErrColumns = errors.New("ratelimit/postgres: the server's answer does not have the statement's columns")

// Columns returns the columns of all rows, which are parts of result. NULL is nil.
func Columns(result []byte) ([][]byte, error) {
	var all [][]byte
	for rest := result; len(rest) > 0; {
		if len(rest) < 4 {
			return nil, ErrColumns
		}
		size := int(int32(binary.BigEndian.Uint32(rest)))
		rest = rest[4:]
		if size < 0 {
			all = append(all, []byte(nil))
			continue
		}
		if size > len(rest) {
			return nil, ErrColumns
		}
		all = append(all, rest[:size:size])
		rest = rest[size:]
	}
	return all, nil
}
