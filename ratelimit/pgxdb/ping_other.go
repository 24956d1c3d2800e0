//go:build !unix

package pgxdb

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// shouldPing reports whether an idle connection has to be pinged before it is used.
func shouldPing(idle pgxpool.ShouldPingParams) bool { return idle.IdleDuration > time.Second }
