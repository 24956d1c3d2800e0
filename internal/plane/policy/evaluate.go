package policy

import (
	"strings"
	"time"
)

// Evaluate overwrites v with the verdict on a request. id is nil for an anonymous request.
//
// Evaluate copies the verdict from the memo if the identity has no ban, overrides or billing period, and no
// ban or rule names a network of the client's address. Otherwise it calls evaluateInFull. The common case is
// in the body of this function, because calls are slow in the interpreter: doc.go names the benchmark.
func Evaluate(s *Snapshot, f *Facts, id *Identity, now time.Time, v *Verdict) {
	if id == nil || s.set.memo == nil {
		evaluateInFull(s, f, id, now, v)
		return
	}
	sender, _ := id.state.Load().(*senderState)
	if sender == nil || sender.set != s.set || sender.bans != s.bans || now.UnixMicro() >= sender.plainUntil {
		evaluateInFull(s, f, id, now, v)
		return
	}
	cache := s.set.memo
	cache.mu.RLock()
	m := cache.matches[combination{id.Tier, f.Method, f.Host, f.Path}]
	cache.mu.RUnlock()
	if m == nil || m.verdict == nil || len(s.bans.byNetwork) > 0 && networkBan(s.bans, f) != nil ||
		len(s.set.index.byNetwork) > 0 && len(findByNetwork(s.set.index, f, id.Tier, nil)) > 0 {
		evaluateInFull(s, f, id, now, v)
		return
	}
	stored := m.verdict
	clearVerdict(v)
	v.User = id.User
	v.Tier = id.Tier
	v.KeyID = id.KeyID
	v.Rule = stored.Rule
	v.Endpoint = stored.Endpoint
	v.Simple = stored.Simple
	v.Marks = append(v.Marks, stored.Marks...)
	v.Would = append(v.Would, stored.Would...)
	v.Hits = append(v.Hits, stored.Hits...)
	for _, i := range m.userHits {
		v.Hits[i].Key = sender.user
	}
}

// evaluateInFull evaluates any request without the memo's verdicts. It returns the state of the sender, and
// the reason why its API key is not valid, or NotRefused. A request with an invalid key counts as anonymous.
func evaluateInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, v *Verdict) (*senderState, Reason) {
	at := now.UnixMicro()
	clearVerdict(v)
	v.Tier = f.Tier
	sender := anonymous
	var ban *Ban
	reason := NotRefused
	if id != nil {
		state := senderStateOf(s, id)
		ban = state.ban
		reason = keyProblem(id, state, at)
		if reason == NotRefused {
			sender = state
			v.User = id.User
			v.KeyID = id.KeyID
			if id.Tier != "" && at < sender.tierUntil {
				v.Tier = id.Tier
			}
		}
	}
	switch {
	case refuseBanned(networkBan(s.bans, f), ban, now, v):
	case reason != NotRefused && f.RejectUnknown:
		rejectKey(s, f, reason, at, v)
		if id.Known {
			v.Ended = id
		}
	default:
		decide(s.set, f, sender, at, v)
	}
	return sender, reason
}

// keyProblem returns the reason why an identity's API key is not valid, or NotRefused.
func keyProblem(id *Identity, sender *senderState, at int64) Reason {
	switch {
	case !sender.hasKey:
		return NotRefused
	case !id.Known:
		return UnknownKey
	case at >= sender.revokedAt:
		return KeyRevoked
	case at >= sender.expiresAt:
		return KeyExpired
	}
	return NotRefused
}

// decide sets v to the verdict of the rules. It refuses the request if the verdict depends on the parameters
// of the path. Before the call, v.Tier must be set and v must otherwise be empty.
func decide(set *ruleSet, f *Facts, sender *senderState, at int64, v *Verdict) {
	apply(match(set, f, v), f, sender, at, v)
	if strings.IndexByte(f.Path, ';') >= 0 && isAmbiguous(set, f, sender, at, v) {
		RefuseAmbiguous(v)
	}
}

// apply sets v to the verdict of the rules in found.
func apply(found []*rule, f *Facts, sender *senderState, at int64, v *Verdict) {
	if selectRules(found, f, sender, at, v) {
		charge(sender, at, v)
	}
}

// evaluateUnknown evaluates a request without a look-up of its sender, by bans and by rules that do not need
// the sender. id has only the digest of the API key, or the user.
func evaluateUnknown(s *Snapshot, f *Facts, id *Identity, now time.Time, v *Verdict) {
	clearVerdict(v)
	v.Tier = f.Tier
	v.User = id.User
	if !refuseBanned(networkBan(s.bans, f), senderBan(s.bans, id), now, v) {
		v.senderUnknown = true
		decide(s.set, f, anonymous, now.UnixMicro(), v)
	}
}

// rejectKey refuses a request because of its API key. A rule that blocks the request with any key takes
// precedence, so that the response does not depend on the cache.
func rejectKey(s *Snapshot, f *Facts, reason Reason, at int64, v *Verdict) {
	v.senderUnknown = true
	decide(s.set, f, anonymous, at, v)
	if v.Reason == Blocked {
		return
	}
	clearVerdict(v)
	v.Tier = f.Tier
	v.Reason = reason
	v.Status = 401
}
