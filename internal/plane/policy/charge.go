package policy

import "github.com/pgratelimit/pg-ratelimit/ratelimit"

// charge sets the limits of the hits to the amounts that hold for the sender at a time. It drops unlimited
// hits, and moves those of shadow rules to the end, Apart. A limit with the amount 0 refuses the request.
func charge(sender *senderState, at int64, o *Verdict) {
	simple := true
	kept := 0
	var shadows []ratelimit.Hit
	var marks []*Mark // marks[i] describes shadows[i]
	for i, l := range o.limits {
		a := l.own
		if l.tiers != nil || sender.adjusted {
			a = amountFor(l, sender, at, o)
		}
		if a.unlimited {
			continue
		}
		if a.zero {
			if a.mark.Shadow {
				o.Would = append(o.Would, a.mark)
				continue
			}
			refuse(o, NoQuota, a.mark)
			return
		}
		if a.mark.Shadow {
			hit := o.Hits[i]
			hit.Limit = a.limit
			hit.Apart = true
			shadows = append(shadows, hit)
			marks = append(marks, a.mark)
			continue
		}
		if kept < i {
			o.Hits[kept] = o.Hits[i]
		}
		o.Hits[kept].Limit = a.limit
		kept++
		o.Marks = append(o.Marks, a.mark)
		simple = simple && a.mark.simple
	}
	o.Hits = o.Hits[:kept]
	if marks != nil {
		o.Hits = append(o.Hits, shadows...)
		o.Marks = append(o.Marks, marks...)
	}
	o.Simple = simple && kept > 0 && marks == nil
}
