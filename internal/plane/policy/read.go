package policy

import (
	"context"
	"encoding/hex"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// The functions here read once what a Policy keeps up to date, for programs that explain what
// a proxy does. Their errors wrap ratelimit.ErrUnavailable if the database does not answer.

// ReadRules reads the rules that can have an effect now or later, and the overrides for tiers,
// for Compile.
func ReadRules(ctx context.Context, db pgdb.DB) ([]Rule, []Override, error) {
	rows, err := readRules(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	return DecodeRules(rows)
}

// RulesSQL is the statement of ReadRules, for programs that run it in a transaction of their own.
// Its rows have three texts.
func RulesSQL() string { return rulesSQL }

// ReadBans reads the bans of networks that are in force.
func ReadBans(ctx context.Context, db pgdb.DB) ([]Ban, error) {
	rows, err := readBans(ctx, db)
	if err != nil {
		return nil, err
	}
	return decodeBans(rows)
}

// ReadKey reads the identity of an API key by its Digest. Identity.Known is false if the
// database does not have the key.
func ReadKey(db pgdb.DB, digest [32]byte) (*Identity, error) {
	return readIdentity(db, credential{digest: digest})
}

// ReadUser reads the identity of a user, like ReadKey.
func ReadUser(db pgdb.DB, user string) (*Identity, error) {
	return readIdentity(db, credential{user: user})
}

func readIdentity(db pgdb.DB, s credential) (*Identity, error) {
	found, _, err := lookUp(db, []*lookup{{sender: s}})
	if err != nil {
		return nil, err
	}
	a := found[s.name()]
	if a.identity == nil && a.err == nil {
		a.identity = &Identity{Digest: s.digest, User: s.user}
	}
	return a.identity, a.err
}

// digestOf is a digest in hexadecimal; a wrong one is zero.
func digestOf(text string) [32]byte {
	var digest [32]byte
	decoded, err := hex.DecodeString(text)
	if err == nil && len(decoded) == len(digest) {
		copy(digest[:], decoded)
	}
	return digest
}
