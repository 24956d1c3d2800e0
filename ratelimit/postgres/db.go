package postgres

import (
	"context"
	"errors"
)

// DB runs SQL statements for a Store. The store knows what to ask, a DB knows how
// to talk to the server: package pgxdb for compiled programs, a small wire client
// for interpreted ones.
//
// A DB is safe for concurrent use. Every method returns when ctx ends, at the
// latest, with an error that wraps ctx's.
type DB interface {
	// Run sends the statements in one pipeline over one connection, in order, and reads their results. Each
	// statement is a transaction of its own unless Statement.Joined says otherwise, so a statement that fails
	// does not undo those of other transactions: its Err is set and Run goes on.
	//
	// Run returns an error only if the connection failed or ctx ended. Err is then set in every
	// statement of which it is not known whether it took effect. A DB sends a transaction again by itself only if the
	// first attempt certainly had no effect.
	Run(ctx context.Context, statements []*Statement) error

	// Exec runs SQL text without parameters, which may hold several commands.
	Exec(ctx context.Context, sql string) error

	// Close closes the connections. Statements under way may fail.
	Close()
}

// elsewhere is a DB that can connect to other servers with what it knows of the database and of the account, as
// that of pgxdb can. At does not touch the network yet. A database with counts in parts needs it.
type elsewhere interface {
	At(host string, port int) (DB, error)
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

// ErrRolledBack is the error of a statement that was undone because another
// statement of its transaction failed.
var ErrRolledBack = errors.New("ratelimit/postgres: rolled back with its transaction")
