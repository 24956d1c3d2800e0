package archive

import (
	"errors"
	"iter"
	"slices"

	"github.com/parquet-go/parquet-go"
)

// overlap returns how many rows two files have in common. Only the columns that both have are compared: a newer
// version may have added one. Both files must be sorted by time. The memory that it takes grows with the number
// of rows at the same microsecond.
func overlap(a, b readableFile) (common int64, err error) {
	fileA, err := openFile(a)
	if err != nil {
		return 0, err
	}
	fileB, err := openFile(b)
	if err != nil {
		return 0, err
	}
	ofA, ofB := newHasher(namesOf(fileA)), newHasher(namesOf(fileB))
	ofA.order, ofB.order = nil, nil
	for i, name := range ofA.names {
		if j := slices.Index(ofB.names, name); j >= 0 {
			ofA.order, ofB.order = append(ofA.order, i), append(ofB.order, j)
		}
	}
	next, stopLeft := iter.Pull2(moments(fileA, ofA))
	defer stopLeft()
	nextRight, stopRight := iter.Pull2(moments(fileB, ofB))
	defer stopRight()
	left, err, more := next()
	right, wrong, moreRight := nextRight()
	for more && moreRight && err == nil && wrong == nil {
		switch {
		case left.time < right.time:
			left, err, more = next()
		case left.time > right.time:
			right, wrong, moreRight = nextRight()
		default:
			for digest, n := range left.digests {
				common += min(n, right.digests[digest])
			}
			left, err, more = next()
			right, wrong, moreRight = nextRight()
		}
	}
	return common, errors.Join(err, wrong)
}

// moment are the rows of one time: how many rows have which digest.
type moment struct {
	time    int64
	digests map[uint64]int64
}

// moments returns the rows of a file by their times. Each moment is valid until the next one.
func moments(f *parquet.File, hasher *hasher) iter.Seq2[moment, error] {
	return func(yield func(moment, error) bool) {
		now := moment{digests: map[uint64]int64{}}
		stopped := errors.New("the reader has seen enough")
		err := readRows(f, func(row parquet.Row) error {
			t := hasher.rowTime(row)
			if t != now.time && len(now.digests) > 0 {
				if t < now.time {
					return errors.New("its rows are not sorted by time")
				}
				if !yield(now, nil) {
					return stopped
				}
				clear(now.digests)
			}
			now.time = t
			now.digests[hasher.digest(row, nil)]++
			return nil
		})
		if err == nil && len(now.digests) > 0 {
			yield(now, nil)
		} else if err != nil && !errors.Is(err, stopped) {
			yield(moment{}, err)
		}
	}
}
