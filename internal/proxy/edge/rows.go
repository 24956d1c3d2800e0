package edge

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// CheckRows returns an error if two hits of one request could be on the same row, which
// ratelimit.Store does not allow. Two limits with one prefix and one table could be, unless
// both keys are fixed and differ: a client often chooses the value of a placeholder. at is
// the index of the second of the two limits.
func CheckRows(zones []*Zone) (at int, err error) {
	for i := range zones {
		for j := range zones[:i] {
			if mayShareRow(zones[j], zones[i]) {
				return i, &ratelimit.FieldError{Field: "prefix", Value: zones[i].Limit.Prefix, Want: "another name: " +
					"an earlier limit on the same request counts under it in the same table, where the two keys could be the same"}
			}
		}
	}
	return 0, nil
}

// mayShareRow reports whether hits of two limits could be on the same row.
func mayShareRow(a, b *Zone) bool {
	if a.Limit.Prefix != b.Limit.Prefix || a.Limit.Durable != b.Limit.Durable {
		return false
	}
	fixed := a.Plain() && b.Plain() && a.Key.Fixed() && b.Key.Fixed()
	return !fixed || a.Key.Of(nil) == b.Key.Of(nil)
}
