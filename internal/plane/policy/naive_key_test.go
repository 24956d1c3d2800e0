package policy_test

import (
	"fmt"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// naiveKeys returns the keys of a counter, for values without spaces and percent signs. Of the values of a
// request, only those of a header can be several.
func naiveKeys(r *policy.Rule, f *policy.Facts, v *policy.Verdict) []string {
	by := r.CountBy
	if len(by) == 0 {
		by = []string{"user"}
	}
	network := "unknown"
	address := clientOf(f.Address.Unmap())
	if address.IsValid() {
		network = address.String()
		if address.Is6() {
			p, _ := address.Prefix(64)
			network = p.String()
		}
	}
	keys := []string{""}
	for i, element := range by {
		var values []string
		names := strings.Split(element, "|")
		number := 0
		for values == nil && number < len(names) {
			number++
			values = naivePart(r, f, v, names[number-1], network, number == len(names))
		}
		var next []string
		for _, key := range keys {
			for _, value := range values {
				if len(names) > 1 {
					value = fmt.Sprintf("%d|%s", number, value)
				}
				if i > 0 {
					value = " " + value
				}
				next = append(next, key+value)
			}
		}
		keys = next
	}
	return keys
}

// naivePart returns the values of the alternative name of a part of a key. last is true for the last
// alternative of the part.
func naivePart(
	r *policy.Rule, f *policy.Facts, v *policy.Verdict, name, network string, last bool,
) []string {
	one := ""
	switch name {
	case "user":
		one = v.User
		if v.User == "" && last {
			one = "ip:" + network
		}
	case "key":
		if v.KeyID != 0 {
			one = fmt.Sprint(v.KeyID)
		}
	case "tier":
		one = v.Tier
	case "ip":
		one = network
	case "ip/128":
		one = "unknown"
		if f.Address.IsValid() {
			one = clientOf(f.Address.Unmap()).String()
		}
	case "host":
		one = f.Host
	case "route":
		one = f.Route
	case "all":
		one = "all"
	default:
		values := f.HTTP.Header.Values(strings.TrimPrefix(name, "header:"))
		if len(values) == 0 && last && r.WithoutHeader != option.WithoutSkip {
			return []string{"%empty"}
		}
		return values
	}
	if one == "" {
		return nil
	}
	return []string{one}
}
