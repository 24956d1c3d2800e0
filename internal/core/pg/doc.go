// Package pg holds what the store and its drivers share about Postgres: the rows of a result (results.go),
// the SQLSTATEs that they handle (sqlstate.go), which statements a driver sends again (attempt.go), how a
// replaced primary is detected (timeline.go), and the guard (guard.go).
//
// The guard protects statements from settings of a role, a database or a server that would cost them their
// time or their plan. Guard adds statements before each transaction, in the same pipeline and transaction.
// They therefore work through a pooler that gives each transaction another session, change nothing for later
// users of the session, and take no round trip. Their results also show whether a setting does harm. If no
// setting does, a driver guards only the first Run of a connection, and then each Run that comes after a
// number of Runs (recheck) without a guard, because settings of a server can change.
//
// Guard turns JIT off in each Run that begins with an Unnamed statement: such a statement is planned each
// time, and may be costly enough for the server to compile it. Harmful names the settings that a guard cannot
// undo.
package pg
