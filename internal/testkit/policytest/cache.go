package policytest

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// RunCache uses a cache of identities at random and returns what it finds. All depends on the
// seed alone.
func RunCache(seed, steps int) []string {
	pick := Numbers(seed)
	c := policy.NewIdentities(8)
	now := Now
	generation := c.Generation()
	var texts []string
	for i := 0; i < steps; i++ {
		number := strconv.Itoa(pick(16))
		digest := policy.Digest(number)
		user := "user" + strconv.Itoa(pick(3))
		switch pick(8) {
		case 0:
			generation = c.Generation()
		case 1:
			c.EvictKey(digest)
		case 2:
			c.EvictUser(user)
		case 3:
			now = now.Add(time.Second)
		case 4:
			if pick(10) == 0 {
				c.EvictAll()
			}
		default:
			id := &policy.Identity{Digest: digest, User: user, Known: pick(3) > 0}
			texts = append(texts, "stale "+strconv.Itoa(c.Add([]*policy.Identity{id}, generation, now)))
		}
		id, at := policy.FindIdentity(c, policy.NameOfKey(digest), now)
		known, unknown := c.Len()
		text := fmt.Sprint(number, " ", at, " ", known, " ", unknown)
		if id != nil {
			text += fmt.Sprint(" ", id.User, " ", id.Known)
		}
		texts = append(texts, text)
	}
	return texts
}

// RunText returns what becomes of keys, paths and hosts.
func RunText() []string {
	texts := []string{policy.Bearer("bearer  x "), policy.NormalHost("[2001:DB8::0:1]:80"), policy.NormalHost("A.test.:80"), policy.Hint("prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVB")}
	for _, path := range []string{"/", "//a/%2e%2e/b/", "/a%2Fb", "/a%2F..%2Fb", "/a\\b", "/%zz/%", "/a;x/b", "/a/..;/b", "/a;%2fb/"} {
		normal, err := policy.NormalPath(path)
		texts = append(texts, fmt.Sprint(normal, " ", err))
	}
	for _, key := range []string{"prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVB", "prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVC", ""} {
		texts = append(texts, fmt.Sprint(policy.Check(key), " ", policy.Digest(key)))
	}
	made, err := policy.NewKey()
	return append(texts, fmt.Sprint(policy.Check(made), " ", err))
}
