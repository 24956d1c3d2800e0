package archive

import (
	"errors"
	"io"
)

// overlap returns how many rows two files have in common. Both must be sorted by time. The
// memory that it takes grows with the number of rows at the same microsecond.
func overlap(a, b source) (int64, error) {
	left, err := openGroups(a)
	if err != nil {
		return 0, err
	}
	defer left.rows.close()
	right, err := openGroups(b)
	if err != nil {
		return 0, err
	}
	defer right.rows.close()
	common := int64(0)
	for !left.ended && !right.ended {
		switch {
		case left.time < right.time:
			err = left.next()
		case left.time > right.time:
			err = right.next()
		default:
			for digest, n := range left.digests {
				common += min(n, right.digests[digest])
			}
			if err = left.next(); err == nil {
				err = right.next()
			}
		}
		if err != nil {
			return 0, err
		}
	}
	return common, nil
}

// groups reads the rows of a file in groups of equal time.
type groups struct {
	rows   *fileReader
	hasher *hasher

	// The group that was read: its time, and how many rows have which digest.
	time    int64
	digests map[uint64]int64
	ended   bool

	// The first row of the next group.
	ahead     bool
	aheadTime int64
	aheadHash uint64
}

// openGroups opens a file and reads its first group.
func openGroups(s source) (*groups, error) {
	rows, err := openRows(s)
	if err != nil {
		return nil, err
	}
	g := &groups{rows: rows, hasher: newHasher(), digests: make(map[uint64]int64)}
	if err = g.advance(); err == nil {
		err = g.next()
	}
	if err != nil {
		rows.close()
		return nil, err
	}
	return g, nil
}

// advance reads one row.
func (g *groups) advance() error {
	row, err := g.rows.next()
	if errors.Is(err, io.EOF) {
		g.ahead = false
		return nil
	}
	if err != nil {
		return err
	}
	g.ahead, g.aheadTime, g.aheadHash = true, rowTime(row), g.hasher.digest(row, nil)
	return nil
}

// next reads the next group.
func (g *groups) next() error {
	clear(g.digests)
	if !g.ahead {
		g.ended = true
		return nil
	}
	g.time = g.aheadTime
	for g.ahead && g.aheadTime == g.time {
		g.digests[g.aheadHash]++
		if err := g.advance(); err != nil {
			return err
		}
	}
	if g.ahead && g.aheadTime < g.time {
		return errors.New("its rows are not sorted by time")
	}
	return nil
}
