package edge

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantBan = "a ban such as 1h after 10 refusals in 1m: times from 1s to 365d, and 1 to 1000000 refusals"

// ParseBan reads when the refusals of a limit lead to a ban: "1h after 10 refusals in 1m".
// "" is never, which is nil.
func ParseBan(text string) (*policy.BanAfter, error) {
	if text == "" {
		return nil, nil
	}
	wrong := &ratelimit.FieldError{Field: "ban", Value: text, Want: wantBan}
	words := strings.Fields(text)
	if len(words) != 6 || words[1] != "after" || words[3] != "refusals" && words[3] != "refusal" || words[4] != "in" {
		return nil, wrong
	}
	b := &policy.BanAfter{}
	var err error
	if b.For, err = ratelimit.ParseWindow(words[0]); err != nil {
		return nil, wrong
	}
	if b.Refusals, err = strconv.ParseInt(words[2], 10, 64); err != nil {
		return nil, wrong
	}
	if b.Within, err = ratelimit.ParseWindow(words[5]); err != nil {
		return nil, wrong
	}
	if b.Validate() != nil {
		return nil, wrong
	}
	return b, nil
}

// checkBanPrefix checks that the refusals of a limit can be counted.
func checkBanPrefix(to *Settings, _ string) error {
	prefix := to.Limit.Limit.Prefix
	if to.Limit.Ban != nil && len(BanPrefix)+len(prefix) > ratelimit.MaxPrefix {
		return &ratelimit.FieldError{Field: "prefix", Value: prefix, Want: "a name of at most " +
			strconv.Itoa(ratelimit.MaxPrefix-len(BanPrefix)) + " bytes with a ban: its refusals are counted under " + BanPrefix + " and this name"}
	}
	return nil
}

// BanNeedsPolicy is the error of a ban without a policy. Only a policy enforces bans.
func BanNeedsPolicy(text string) error {
	return &ratelimit.FieldError{Field: "ban", Value: text, Want: "left out, or used with a policy: the policy enforces bans"}
}
