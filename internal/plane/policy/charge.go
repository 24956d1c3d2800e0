package policy

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// charge sets the limits of the hits to the sender's amounts at the time at. It drops unlimited hits, moves
// hits of shadow rules to the end and marks them Independent. A limit with the amount 0 refuses the request.
func charge(sender *senderState, at int64, v *Verdict) {
	simple := true
	kept := 0
	var shadows []ratelimit.Hit
	var marks []*Mark // marks[i] describes shadows[i]
	for i, l := range v.limits {
		a := l.own
		if l.tiers != nil || sender.adjusted {
			a = amountFor(l, sender, at, v)
		}
		if a.unlimited {
			continue
		}
		if a.zero {
			if a.mark.Shadow {
				v.Would = append(v.Would, a.mark)
				continue
			}
			refuse(v, NoQuota, a.mark)
			return
		}
		if a.mark.Shadow {
			hit := v.Hits[i]
			hit.Limit = a.limit
			hit.Independent = true
			shadows = append(shadows, hit)
			marks = append(marks, a.mark)
			continue
		}
		if kept < i {
			v.Hits[kept] = v.Hits[i]
		}
		v.Hits[kept].Limit = a.limit
		kept++
		v.Marks = append(v.Marks, a.mark)
		simple = simple && a.mark.simple
	}
	v.Hits = v.Hits[:kept]
	if marks != nil {
		v.Hits = append(v.Hits, shadows...)
		v.Marks = append(v.Marks, marks...)
	}
	v.Simple = simple && kept > 0 && marks == nil
}
