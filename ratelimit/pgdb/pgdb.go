// Package pgdb is the interface of a driver for Postgres.
package pgdb

import (
	"context"
	"errors"
)

// DB runs SQL statements. Package pgxdb has one for compiled programs. A DB is safe for concurrent use. Every method
// returns when ctx ends, at the latest, with an error that wraps ctx's; see Run for its deadline.
type DB interface {
	// Run sends the statements in one pipeline over one connection, in order, and reads their results. Each
	// statement is a transaction of its own unless Statement.Joined says otherwise, so a statement that fails does not
	// undo those of other transactions: its Err is set and Run goes on. Run returns an error only if the connection
	// failed or ctx ended. Err is then set in every statement of which it is not known whether it took effect. A DB
	// sends a transaction again by itself only if the first attempt certainly had no effect.
	//
	// The deadline of ctx is for the database, not for this process: the time that ctx has left begins anew when the
	// statements are sent, and an answer that has come counts even if this process reads it after that time.
	Run(ctx context.Context, statements []*Statement) error
	// Exec runs SQL text without parameters, which may hold several commands.
	Exec(ctx context.Context, sql string) error
	// Close closes the connections. Statements under way may fail.
	Close()
}

// Statement is one SQL statement, its parameters and its result.
type Statement struct {
	// SQL is the text, with $1, $2 … for the parameters. A store uses few texts, so a DB
	// prepares each text once for each connection.
	SQL string
	// Args are the parameters, each a []string (text[]), []int64 (bigint[]), string (text),
	// int64 (bigint) or nil (NULL, of the type that the text gives it).
	Args []any
	// Unnamed sends the text without preparing it, so that the server plans it for these
	// parameters. It is for a statement with a generic plan that would read a whole table.
	Unnamed bool
	// Alone says that the statement must not be part of a transaction, as one with CONCURRENTLY. It is not Joined.
	Alone bool
	// Joined puts the next statement into the same transaction. A run of joined
	// statements and the statement after it take effect together or not at all.
	Joined bool
	// Result holds the rows, one after another, of each row the columns, and of each column its
	// length in four bytes (-1 for NULL, big endian) and its value in Postgres's binary format.
	// A DB appends to Result[:0], so the memory of an earlier result is used again.
	Result []byte
	// Rows is how many rows Result holds.
	Rows int
	// Err is set by DB.Run: nil if the statement took effect. If a statement of a
	// transaction fails, it has the server's error, and the others have ErrRolledBack. Result
	// still holds the rows of the statements before the failed one.
	Err error
	// Code is the SQLSTATE that came with Err, or "" if the server sent none.
	Code string
}

// ErrRolledBack is the error of a statement that was undone because another one of its transaction failed.
var ErrRolledBack = errors.New("ratelimit/pgdb: rolled back with its transaction")
