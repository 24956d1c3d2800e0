package edge

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// LimitRows names the rows that the hits of a limit can be on.
type LimitRows struct {
	Limit *ratelimit.Limit
	Fixed bool   // the key is the same for all requests
	Key   string // the key if Fixed
}

// CheckRows returns an error if two hits of one request could be on the same row, which
// ratelimit.Store does not allow. Two limits with one prefix and one table could be, unless
// both keys are fixed and differ: a client often chooses the value of a placeholder. at is
// the index of the second of the two limits.
func CheckRows(rows []LimitRows) (at int, err error) {
	for i := range rows {
		for j := range rows[:i] {
			if mayShareRow(&rows[j], &rows[i]) {
				return i, &ratelimit.FieldError{Field: "prefix", Value: rows[i].Limit.Prefix, Want: "another name: " +
					"an earlier limit on the same request counts under it in the same table, where the two keys could be the same"}
			}
		}
	}
	return 0, nil
}

func mayShareRow(a, b *LimitRows) bool {
	if a.Limit.Prefix != b.Limit.Prefix || a.Limit.Durable != b.Limit.Durable {
		return false
	}
	return !a.Fixed || !b.Fixed || a.Key == b.Key
}
