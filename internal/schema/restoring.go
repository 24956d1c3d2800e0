package schema

import "errors"

const restoring = "the tables are there in part, as during a restore and after one that has failed: a " +
	"proxy does not change them. If no restore is under way, repeat the restore, or run: caddy " +
	"pg-ratelimit migrate"

// ErrRestoring is the error of a migration while RestoredInPart holds.
var ErrRestoring = errors.New(restoring)
