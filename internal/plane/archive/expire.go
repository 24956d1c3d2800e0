package archive

import (
	"context"
	"fmt"
)

// expire deletes the files of days that ended at or before o.Expire. It deletes only what this package
// wrote: the name and the metadata of a file must both say so, for the same day.
func expire(ctx context.Context, o Options) ([]Day, error) {
	if o.Expire.IsZero() {
		return nil, nil
	}
	var expired []Day
	for _, p := range parts {
		names, err := o.To.list(ctx, p.folder+"/")
		if err != nil {
			return expired, fmt.Errorf("listing the files of %s: %w", p.folder, err)
		}
		for _, name := range names {
			day, _, ok := dayOf(p.folder, name)
			if !ok || day.Add(dayLength).After(o.Expire) {
				continue
			}
			file, err := o.To.open(ctx, name, false)
			if err != nil {
				return expired, fmt.Errorf("opening %s: %w", name, err)
			}
			footer, err := readFooter(file)
			size := file.Size()
			_ = file.Close() // it was only read
			if err := ctx.Err(); err != nil {
				return expired, err
			}
			if err != nil || footer.Day != dayName(day) {
				continue
			}
			if err := o.To.remove(ctx, name); err != nil {
				return expired, fmt.Errorf("deleting %s: %w", name, err)
			}
			d := Day{Day: footer.Day, Partition: footer.Partition, Result: Expired, File: name, Rows: footer.Rows, Bytes: size}
			expired = append(expired, d)
			if o.Done != nil {
				o.Done(d)
			}
		}
	}
	return expired, nil
}
