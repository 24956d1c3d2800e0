package engine

import "github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"

// elsewhere is a DB that can connect to other servers with what it knows of the database and of the account, as
// that of pgxdb can. At does not touch the network yet. A database with counts in parts needs it.
type elsewhere interface {
	At(host string, port int) (pgdb.DB, error)
}
