package ratelimit

import (
	"context"
	"time"
)

// Store decides hits. Postgres shares its counts with every process on the
// database; Memory keeps them in this one.
//
// A Store is safe for concurrent use.
type Store interface {
	// Take decides the hits of one request, which are charged all together or
	// not at all, and writes a decision for each into decisions, which must be
	// as long as hits. An error means that no decision was made within the
	// timeout, or before ctx ended: whether the hits were charged is then not
	// known. Two hits of one request must not share a row (Limit.Prefix, Key,
	// Limit.Durable).
	Take(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision) error

	// Reset gives the keys of the hits their full quota back.
	Reset(ctx context.Context, timeout time.Duration, hits []Hit) error

	// Close releases what the store holds. Later calls return ErrClosed.
	Close()
}

// DB runs SQL statements for a Postgres store. It is the seam between this
// package, which knows what to ask, and a driver, which knows how: pgxdb for
// compiled programs, a small wire client for interpreted ones.
//
// A DB is safe for concurrent use. Every method ends when ctx does, at the
// latest, and then says so with an error that wraps ctx's.
type DB interface {
	// Run sends the statements in one pipeline over one connection, in order,
	// and reads their answers. Each statement is a transaction of its own (a
	// Sync follows each), so one that fails leaves the others alone: its Err
	// is set and Run goes on. Run itself returns an error only where the
	// connection failed or ctx ended; then Err is set in every statement whose
	// outcome is not known.
	Run(ctx context.Context, statements []*Statement) error

	// Exec runs SQL text without parameters, which may hold several commands.
	Exec(ctx context.Context, sql string) error

	// Close closes the connections. Statements under way may fail.
	Close()
}

// Statement is one SQL statement, its parameters, and what came of it.
type Statement struct {
	// SQL is the text, with $1, $2 … for the parameters. A store uses a small
	// number of texts over and over, so a DB prepares each once a connection.
	SQL string

	// Args are the parameters, each a []string (text[]), []int64 (bigint[]),
	// string (text), int64 (bigint), or nil (NULL, of the type that the text
	// gives it).
	Args []any

	// Row is called for each row of the result in order, with its columns in
	// Postgres's binary format, nil for NULL. The bytes are valid only during
	// the call. An error ends the reading and becomes Err. Nil ignores rows.
	Row func(columns [][]byte) error

	// Rows may be called instead of Row, for several rows at once, where no
	// column is NULL and each is of a type of eight bytes. rows holds them as
	// the server sent them, one after another: of each column the length, in
	// four bytes, and the value. Nil leaves all rows to Row.
	Rows func(rows []byte) error

	// Err is what became of the statement, set by DB.Run: nil if it committed.
	Err error

	// Code is the SQLSTATE that came with Err, or "" if the server sent none.
	Code string
}
