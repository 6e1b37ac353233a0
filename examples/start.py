import rightreasons as rr

stream = rr.stream("glyphs", tasks=2, classes=6, train=100, test=30)  # letters over clutter
learner = rr.ER(memory=rr.Memory(30)) + rr.Evidence()  # or + rr.RRR(profile="recommended")
train = rr.Train(epochs=6, batch=16, optimiser="adamw", lr=3e-3, threads=1)

result = rr.fit(learner, rr.net("resnet8"), stream, train=train, run="runs/start", seed=0)

print("accuracy after each task, task by task:", result.R.round(2), sep="\n")
print(f"accuracy {result.accuracy:.2f}, backward transfer {result.bwt:+.2f}")
print("the peak lies on the glyph in", result.matrices["pointing"][-1].round(2), "of test images")

found = rr.load("runs/start").predict(stream[0].test.x[:3])
print("the first three test images:", ", ".join(found.names))
