package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// bannedSenders are the users and API keys that are banned, for requests of senders that are
// not remembered and cannot be looked up. The bans of those that are remembered are in their
// identities.
type bannedSenders struct {
	byName map[string]*Identity // unread, with their bans; by name in the cache
	all    bool                 // there are no others
}

// bannedMost bounds the users and keys. The bans of the others are found by looking them up.
const bannedMost = 100000

// keysInterval is the time between two attempts to read the banned keys that fail.
const keysInterval = 10 * time.Second

// bannedUsersSQL and bannedKeysSQL return rows as identitiesSQL does, one more than bannedMost at
// most. The keys are those that are banned, and those of banned users. They have a statement of
// their own: while the table of API keys is locked, all else must still be obeyed.
var bannedUsersSQL = `SELECT 'user', b.user_id, json_build_object('Bans', json_build_array(` + banSQL + `))::text
FROM rate_limit_bans b WHERE b.user_id IS NOT NULL AND b.until > now() ORDER BY 2 LIMIT 100001`

var bannedKeysSQL = `SELECT 'key', encode(k.digest, 'hex'), json_build_object('KeyID', k.id, 'User', k.user_id, 'Bans', ` + keyBansSQL + `)::text
FROM (SELECT b.key_id FROM rate_limit_bans b WHERE b.until > now()
	UNION SELECT k.id FROM rate_limit_bans b JOIN rate_limit_api_keys k ON k.user_id = b.user_id WHERE b.until > now()) AS banned(id)
JOIN rate_limit_api_keys k ON k.id = banned.id
WHERE coalesce(k.revoked_at > now(), true) AND coalesce(k.expires_at > now(), true) ORDER BY 2 LIMIT 100001`

// readBannedKeys reads the banned keys into rows. After a failure they stay as they are for a
// while.
func (p *Policy) readBannedKeys(ctx context.Context, now time.Time, rows *savedRows) (done bool) {
	if now.Before(p.keysAt) {
		return false
	}
	within, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	keys, err := runOne(within, p.db, &pgdb.Statement{SQL: bannedKeysSQL}, 3)
	if err != nil {
		p.keysAt = now.Add(keysInterval)
		p.report("banned keys", fmt.Errorf("reading the banned API keys: %w", err))
		return false
	}
	p.report("banned keys", nil)
	rows.Keys = keys
	return true
}

// newBannedSenders decodes the rows of bannedUsersSQL and bannedKeysSQL.
func newBannedSenders(users, keys []string) (*bannedSenders, error) {
	rows := append(append([]string(nil), users...), keys...)
	if len(rows)%3 != 0 {
		return nil, errColumns
	}
	b := &bannedSenders{byName: make(map[string]*Identity, len(rows)/3), all: len(rows)/3 <= bannedMost}
	for i := 0; i < len(rows) && len(b.byName) < bannedMost; i += 3 {
		s, id, err := decodeIdentity(rows[i], rows[i+1], rows[i+2])
		if err != nil {
			return nil, fmt.Errorf("the ban of a user or an API key: %w", err)
		}
		id.Unread = true
		b.byName[s.name()] = id
	}
	return b, nil
}

// find returns the identity of a sender that is not looked up, with the bans that are known.
func (b *bannedSenders) find(s credential) *Identity {
	if id := b.byName[s.name()]; id != nil {
		return id
	}
	return &Identity{Digest: s.digest, User: s.user, Unread: true}
}

// concern reports whether changes of users or API keys may change which keys are banned.
func (b *bannedSenders) concern(found changes) bool {
	for _, user := range found.users {
		if b.byName[NameOfUser(user)] != nil {
			return true
		}
	}
	for _, digest := range found.digests {
		if b.byName[NameOfKey(digestOf(digest))] != nil {
			return true
		}
	}
	return false
}

// incomplete is an error if there are more bans than are remembered.
func (b *bannedSenders) incomplete() error {
	if b.all {
		return nil
	}
	return fmt.Errorf("more than %d users and API keys are banned: the bans of the others hold only while the database answers", bannedMost)
}
